"""Arguments for a program that is to be run twice: small numbers that are exact in all sums.

Floats are multiples of 1/8 of at most 1/2, of both signs in the first draw, positive in others.
Integers are indices of the dims that the program looks into in the first draw. In others they are
also before the start, then only behind the end, then only in the last part of these dims.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoshard.ir import mlir
from autoshard.ir.module import operations_of

_PLAIN_DRAWS, _INDEXED_DRAWS = 2, 4
"""So many times a program is run; more often where it looks something up."""

_EIGHTHS = 4
_SMALL = 8
"""Half of the integers are below this."""

_INDEXED = frozenset(
    {
        *("stablehlo.gather", "stablehlo.scatter"),
        *("stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"),
    }
)


def indexed_size(module: mlir.Module) -> int:
    """The largest dim of what ``module`` looks up by number; 0 where it looks nothing up."""
    sizes = [0]
    for op in operations_of(module.operation):
        if op.name in _INDEXED:
            sizes += mlir.RankedTensorType(op.operands[0].type).shape
    return max(sizes)


def draws(indexed: int) -> range:
    """The numbers of the draws for a program; see ``indexed_size``."""
    return range(_INDEXED_DRAWS if indexed else _PLAIN_DRAWS)


def draw(
    types: Sequence[tuple[tuple[int, ...], np.dtype[np.generic]]], indexed: int, number: int
) -> list[np.ndarray]:
    """One array for each shape and type; the same for the same ``number``."""
    return [
        _array(shape, dtype, indexed, number, np.random.default_rng((number, place)))
        for place, (shape, dtype) in enumerate(types)
    ]


def _array(
    shape: tuple[int, ...],
    dtype: np.dtype[np.generic],
    indexed: int,
    number: int,
    random: np.random.Generator,
) -> np.ndarray:
    is_first = number == 0
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(dtype)
    if dtype == np.uint32 or dtype == np.uint64:  # bits of keys, most often
        return random.integers(0, 2**32, shape, dtype=np.uint64).astype(dtype)
    if dtype.kind == "f":
        return _floats(shape, is_first, random).astype(dtype)
    if dtype.kind == "c":
        parts = [_floats(shape, is_first, random) for _ in range(2)]
        return (parts[0] + 1j * parts[1]).astype(dtype)
    end = max(indexed, _SMALL)
    low, high = ((0, end), (-end, 2 * end), (end, 2 * end), (end // 2, end))[number]
    found = random.integers(low, high, shape)
    if is_first:
        narrow = random.integers(0, _SMALL, shape)
        found = np.where(random.integers(0, 2, shape) > 0, found, narrow)
    least, most = _range(dtype)
    return np.clip(found, least, most).astype(dtype)


def _floats(shape: tuple[int, ...], is_signed: bool, random: np.random.Generator) -> np.ndarray:
    eighths = random.integers(1, _EIGHTHS + 1, shape) / 8
    return eighths * (random.integers(0, 2, shape) * 2 - 1) if is_signed else eighths


def _range(dtype: np.dtype[np.generic]) -> tuple[int, int]:
    import ml_dtypes

    info = ml_dtypes.iinfo(dtype)
    return int(info.min), int(info.max)
