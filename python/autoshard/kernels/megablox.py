"""Grouped matmuls of ``megablox``, Pallas kernels for TPUs that multiply rows sorted by expert.

``gmm`` multiplies each row with its expert's matrix, ``tgmm`` makes the gradient of the matrices.
How large the grid is, and which rows a place of it has, is known only when they run: tables say it,
which are made of the sizes of the groups. So no dim of the grid could be proven to be free of
others' rows; but what they compute is known, and a device computes its part with the same kernel
and tables of its own.

Source: ``jax.experimental.pallas.ops.tpu.megablox``, whose kernels MaxText has copies of.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from autoshard.ir.kernel import Call
from autoshard.kernels.experts import OfExperts, experts_rule, only_rows_of

_MODULE = "jax.experimental.pallas.ops.tpu.megablox.gmm"
_NUMBERS: Any = jax.lax.RaggedDotDimensionNumbers
_LEAST_ROWS = 16
"""Rows of the smallest tile that all types of 16 and 32 bits have."""


@dataclass(frozen=True)
class GroupedMatmul:
    """A call of one of the kernels.

    Args:
        num_experts: Groups that sizes are given of.
        tiling: Rows, contracted features and other features of a block.
        dtype: Of the result.
        makes_weights: Is it ``tgmm``?
        is_transposed: Are the matrices of ``gmm`` contracted over their last dim?
        is_interpreted: Does it run in Pallas' interpret mode?
    """

    num_experts: int
    tiling: tuple[int, int, int]
    dtype: Any
    makes_weights: bool
    is_transposed: bool
    is_interpreted: bool

    @property
    def numbers(self) -> Any:
        """What it computes, as ``RaggedDotDimensionNumbers``."""
        if self.makes_weights:
            return _NUMBERS((((0,), (0,)), ((), ())), (0,), ())
        right = 2 if self.is_transposed else 1
        return _NUMBERS((((1,), (right,)), ((), ())), (0,), (0,))

    def call(self, lhs: Any, rhs: Any) -> Call:
        """The kernel of operands of these types."""
        name = "tgmm" if self.makes_weights else "gmm"
        rows, features = lhs.shape
        others = self._columns(rhs)
        return Call(
            name,
            OfExperts(self.numbers, self.product, self.num_experts),
            experts_rule(name, self.numbers, lhs.ndim, rhs.ndim),
            matmul_flops=2.0 * rows * features * others,
            moved_again=self._moved_again(lhs, rhs),
            product=jnp.promote_types(lhs.dtype, rhs.dtype),
        )

    def product(self, lhs: Any, rhs: Any, sizes: Any, has_all: bool) -> Any:
        """The kernel on some rows and some experts; see ``OfExperts``."""
        del has_all
        kernels: Any = importlib.import_module(_MODULE)
        others = self._columns(rhs)
        rows, features, columns = self.tiling
        num_rows = lhs.shape[0]
        tile = _tile_of_rows(num_rows, rows)
        tiling = tile, min(features, lhs.shape[1]), min(columns, others)
        # Rows behind the last one are of no group.
        behind = [(0, -num_rows % tile), (0, 0)]
        lhs = jnp.pad(lhs, behind)
        given: Any = dict(
            preferred_element_type=self.dtype, tiling=tiling, interpret=self.is_interpreted
        )
        if self.makes_weights:
            return kernels.tgmm(lhs.T, jnp.pad(rhs, behind), sizes, **given)
        made: Any = kernels.gmm(lhs, rhs, sizes, transpose_rhs=self.is_transposed, **given)
        return only_rows_of(sizes, made[:num_rows], 0)

    def _columns(self, rhs: Any) -> int:
        return rhs.shape[1 if self.makes_weights or self.is_transposed else 2]

    def _moved_again(self, lhs: Any, rhs: Any) -> float:
        """Bytes of blocks that come from HBM more than once.

        Rows come once for each block of columns. For ``gmm`` a matrix comes once for each block of
        its expert's rows, unless all that is contracted fits one block; for ``tgmm`` rows of the
        second kind come once for each block of the first one's features.
        """
        rows, features, columns = (
            -(-size // tile)
            for size, tile in zip((*lhs.shape, self._columns(rhs)), self.tiling, strict=True)
        )
        again = (columns - 1.0) * lhs.size * lhs.dtype.itemsize
        if self.makes_weights:
            return again + (features - 1.0) * rhs.size * rhs.dtype.itemsize
        if features == 1:
            return again
        return again + (rows - 1.0) * rhs.size / rhs.shape[0] * rhs.dtype.itemsize


def _tile_of_rows(num_rows: int, wanted: int) -> int:
    """Rows of a block: as many as the author wants, or fewer that divide all; at least half of the
    wanted ones, for else padding costs less."""
    most = min(wanted, -(-num_rows // _LEAST_ROWS) * _LEAST_ROWS)
    for tile in range(most, most // 2, -_LEAST_ROWS):
        if num_rows % tile == 0:
            return tile
    return most
