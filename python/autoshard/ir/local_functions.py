"""Functions of this process that are lowered anew at the shapes of one device's blocks.

A module names such a function by a key. It imports no jax, so that ``autoshard-opt``, whose modules
come from other processes, starts without it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Protocol

Shape = tuple[int, ...]


class LocalFunction(Protocol):
    """A function of arrays whose types, but for their sizes, are known."""

    def lowered_at(self, shapes: Sequence[Shape]) -> bytes:
        """A module whose ``main`` is the function of arrays of these shapes."""
        ...


_functions: dict[str, LocalFunction] = {}
_numbers = itertools.count()


def remember(function: LocalFunction, described: str = "") -> str:
    """A key for ``function``, by which this process finds it from now on.

    Args:
        function: Any.
        described: The key, where it says all that another process needs to make the function.
    """
    key = described or f"{os.getpid()}.{next(_numbers)}"
    _functions[key] = function
    return key


def local_function(key: str) -> LocalFunction | None:
    """The function of a key; None: it is of another process."""
    return _functions.get(key)
