"""What the layer examples do when they are run: print the plan, and compare with plain JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from rich import print

import autoshard


def show(
    fn: Callable[..., Any],
    arguments: Callable[[], tuple[Any, ...]],
    mesh: str,
    in_shardings: Any = None,
) -> None:
    """Plan ``fn`` for ``mesh``, run it on 8 virtual CPU devices, compare with one device.

    Args:
        fn: A function with marks.
        arguments: Makes its arguments; called after the devices are there.
        mesh: Such as ``dp=2,tp=4``.
        in_shardings: Pins of the arguments, as ``autoshard.jit`` takes them.
    """
    jax.config.update("jax_num_cpu_devices", 8)
    args = arguments()
    step = autoshard.jit(fn, mesh=mesh, in_shardings=in_shardings)
    print(step.plan(*args))
    expected = np.asarray(jax.jit(fn)(*args))
    found = np.asarray(step(*args))
    difference = np.abs(found - expected).max() / np.abs(expected).max()
    print(f"Largest difference to one device, relative to the largest entry: {difference:.1e}")
