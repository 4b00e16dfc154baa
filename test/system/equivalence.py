"""Whether a sharded run gives what the unsharded run gives."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from math import gcd
from typing import Any

import jax
import numpy as np
from models import Arithmetic, Model, Shard, unmarked

import autoshard

MESH = "dp=2,tp=4"
CLUSTER = "cpu:8"
STAGES = ("forward", "train_step")
"""``train_step`` gives the loss, the gradients, and what the optimizer makes of them."""

Run = Callable[[Callable[..., Any], tuple[Any, ...]], Any]
"""How to run a function on arguments."""


@contextmanager
def shardy(active: bool) -> Iterator[None]:
    """JAX with Shardy, or with GSPMD, as the partitioner."""
    before: bool = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", active)
    try:
        yield
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)


def unsharded(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Run ``fn`` on one device, compiled by plain ``jax.jit``."""
    return jax.device_get(jax.jit(fn)(*args))


@cache
def on_one_device(model: Model, arithmetic: Arithmetic, stage: str) -> Any:
    """What one device gives, compiled and run once for all tests that ask."""
    return unsharded(*problem(model, arithmetic, stage, unmarked))


def sharded(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Run ``fn`` by ``autoshard.jit`` on the 8 devices, from its marks."""
    return jax.device_get(autoshard.jit(fn, mesh=MESH, mode="semi_auto")(*args))


def searched(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Run ``fn`` by ``autoshard.jit`` on the 8 devices, as the search splits it.

    Whether XLA moves as little as planned is not what is asked here.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", autoshard.PlanMismatchWarning)
        return jax.device_get(autoshard.jit(fn, cluster=CLUSTER, mode="auto")(*args))


def data_parallel(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Run ``fn`` by ``autoshard.jit`` on as many of the 8 devices as divide the batch."""
    batch = len(args) - 1
    devices = gcd(8, args[batch].shape[0])
    run = autoshard.jit(fn, mesh=f"data={devices}", mode="data_parallel", batch_argnums=batch)
    return jax.device_get(run(*args))


def problem(
    model: Model, arithmetic: Arithmetic, stage: str, shard: Shard
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function of ``stage`` and its arguments, the same at each call.

    Args:
        model: What to build.
        arithmetic: With which numbers.
        stage: One of ``STAGES``.
        shard: How the model marks its main ops.
    """
    random = np.random.default_rng(7)
    parameters = model.init(arithmetic, random)
    batch = model.batch(arithmetic, random)
    if stage == "forward":
        return model.forward(shard, arithmetic), (parameters, batch)
    state = jax.device_get(arithmetic.optimizer.init(parameters))
    return model.step(shard, arithmetic), (parameters, state, batch)


def assert_equal(found: Any, expected: Any, tolerance: float) -> None:
    """Compare two pytrees of arrays leaf by leaf.

    Args:
        found: What the sharded run gave.
        expected: What the unsharded run gave; same structure, shapes and dtypes.
        tolerance: Largest allowed difference of an entry, relative to the largest absolute entry
            of its leaf. 0 compares the bits, so that -0.0 differs from 0.0 and NaN equals itself.

    Raises:
        AssertionError: With the path of the first leaf that differs.
    """
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for (path, want), got in zip(
        jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(found), strict=True
    ):
        want, got = np.asarray(want), np.asarray(got)
        name = jax.tree_util.keystr(path) or "the result"
        assert (got.shape, got.dtype) == (want.shape, want.dtype), name
        if tolerance == 0:
            differing = got.size - np.count_nonzero(_bits(got) == _bits(want))
            assert differing == 0, f"{name}: {differing} of {got.size} entries differ in their bits"
            continue
        difference = relative_difference(got, want)
        assert difference <= tolerance, f"{name}: relative difference {difference:.3g}"


def relative_difference(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest absolute difference over the largest absolute entry of ``expected``.

    Infinite if one of them has a value that is not finite where the other has not the same.
    """
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    if same.all():
        return 0.0
    if not (np.isfinite(found[~same]).all() and np.isfinite(expected[~same]).all()):
        return float("inf")
    scale = np.abs(expected[np.isfinite(expected)]).max()
    return float(np.abs(found - expected)[~same].max() / scale) if scale else float("inf")


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")
