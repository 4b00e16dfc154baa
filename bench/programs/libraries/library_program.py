"""A small real program of a library, which runs with any ``jit``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Flavour = Literal["jit", "nnx_jit", "filter_jit"]
"""``jax.jit`` and ``autoshard.jit``, or those of flax nnx and of equinox."""


class Jit(Protocol):
    """``jax.jit`` or what stands in its place, with what modes have to be told."""

    def __call__(
        self, fn: Callable[..., Any], batch: tuple[int, ...], flavour: Flavour = "jit"
    ) -> Callable[..., Any]:
        """The function, jitted.

        Args:
            fn: The function.
            batch: Which positional arguments are cut along dim 0, where a mode has to be told.
            flavour: Whose ``jit``.
        """
        ...


@dataclass(frozen=True)
class LibraryProgram:
    """A program, and how far two runs of it may be apart."""

    library: str
    does: str
    run: Callable[[Jit], Any]
    """Returns what the program computes, as a pytree of arrays."""
    tolerance: float = 1e-4
    """Largest difference, relative to the largest number of an array, that rounding explains."""
    x64: bool = False
    """Are numbers of 64 bits? Chaotic programs tell rounding from a fault with them alone."""


PROGRAMS: dict[str, LibraryProgram] = {}
"""By the name of the program, in the order of the table."""


def program(
    library: str, does: str, tolerance: float = 1e-4, x64: bool = False
) -> Callable[[Callable[[Jit], Any]], Callable[[Jit], Any]]:
    """Register a function as the program of its name."""

    def registered(run: Callable[[Jit], Any]) -> Callable[[Jit], Any]:
        PROGRAMS[run.__name__] = LibraryProgram(library, does, run, tolerance, x64)
        return run

    return registered


def digits(rows: int) -> tuple[Any, Any]:
    """The first handwritten digits of scikit-learn: pixels from 0 to 1, and which digit it is."""
    import numpy as np
    from sklearn.datasets import load_digits

    found = load_digits()
    pixels: Any = found.data[:rows] / 16
    return pixels.astype(np.float32), found.target[:rows].astype(np.int32)
