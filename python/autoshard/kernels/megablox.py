"""Grouped matmuls of ``megablox``, Pallas kernels for TPUs that multiply rows sorted by expert.

``gmm`` multiplies each row with its expert's matrix, ``tgmm`` makes the gradient of the matrices.
How large the grid is, and which rows a place of it has, is known only when they run: tables say it,
which are made of the sizes of the groups. So no dim of the grid could be proven to be free of
others' rows; but what they compute is known, and a device computes its part with the same kernel
and tables of its own.

Source: ``jax.experimental.pallas.ops.tpu.megablox``, whose kernels MaxText has copies of.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import jax
import jax.numpy as jnp

from autoshard.ir.kernel import Call, lowered_for
from autoshard.ir.local_functions import LocalFunction
from autoshard.ir.lowering import lower, on_device
from autoshard.kernels.calls import GROUPED_MATMUL
from autoshard.kernels.experts import OfExperts, bind_experts, experts_rule, only_rows_of
from autoshard.kernels.grouped_matmuls import Form

_MODULE = "jax.experimental.pallas.ops.tpu.megablox.gmm"
_NUMBERS: Any = jax.lax.RaggedDotDimensionNumbers
_LEAST_ROWS = 16
"""Rows of the smallest tile that all types of 16 and 32 bits have."""


@dataclass(frozen=True)
class GroupedMatmul:
    """A call of one of the kernels."""

    form: Form
    dtype: Any
    """Type of the result."""
    is_interpreted: bool
    """Does it run in Pallas' interpret mode?"""

    @property
    def numbers(self) -> Any:
        """What it computes, as ``RaggedDotDimensionNumbers``."""
        if self.form.makes_weights:
            return _NUMBERS((((0,), (0,)), ((), ())), (0,), ())
        right = 2 if self.form.is_transposed else 1
        return _NUMBERS((((1,), (right,)), ((), ())), (0,), (0,))

    def call(self, lhs: Any, rhs: Any) -> Call:
        """The kernel of operands of these types."""
        name = "tgmm" if self.form.makes_weights else "gmm"
        rows, features = lhs.shape
        others = self._columns(rhs)
        return Call(
            name,
            OfExperts(self.numbers, self.product, self.form.num_experts),
            experts_rule(name, self.numbers, lhs.ndim, rhs.ndim),
            matmul_flops=2.0 * rows * features * others,
            moved_again=self._moved_again(lhs, rhs),
            product=jnp.promote_types(lhs.dtype, rhs.dtype),
            described=self._described(lhs, rhs),
        )

    def planned(self, result: Sequence[int], starts: Any, first: Any, lhs: Any, rhs: Any) -> Any:
        """The kernel that may be cut.

        Args:
            result: Shape of what the ``pallas_call`` makes.
            starts: Where each group begins.
            first: The first group of which there is a matrix, as an array of one element.
            lhs: Rows.
            rhs: Matrices, or other rows.
        """
        num_here = (result if self.form.makes_weights else rhs.shape)[0]
        experts = first[0] + jnp.arange(num_here, dtype=jnp.int32)
        return bind_experts(self.call(lhs, rhs), lhs, rhs, starts[1:] - starts[:-1], experts)

    def lowered(self, arrays: Sequence[tuple[Sequence[int], str]], platform: str) -> bytes:
        """A module that calls it as the kernel that it is planned as.

        Args:
            arrays: Shapes and types of the operands of ``planned``, and of the result.
            platform: That it is lowered for.
        """
        *operands, result = (jax.ShapeDtypeStruct(tuple(it), dtype) for it, dtype in arrays)
        planned = functools.partial(self.planned, result.shape)
        jitted = jax.jit(planned, keep_unused=True)
        with on_device(None):
            return lower(jitted, tuple(operands), {}, None, platform).bytecode

    def _described(self, lhs: Any, rhs: Any) -> str:
        """All of it, as one line."""
        types = [str(jnp.dtype(each)) for each in (lhs.dtype, rhs.dtype, self.dtype)]
        said = [astuple(self.form), types, self.is_interpreted]
        return f"{GROUPED_MATMUL}{json.dumps(said, separators=(',', ':'))}"

    def product(self, lhs: Any, rhs: Any, sizes: Any, has_all: bool) -> Any:
        """The kernel on some rows and some experts; see ``OfExperts``."""
        del has_all
        kernels: Any = importlib.import_module(_MODULE)
        others = self._columns(rhs)
        rows, features, columns = self.form.tiling
        num_rows = lhs.shape[0]
        tile = _tile_of_rows(num_rows, rows)
        tiling = tile, min(features, lhs.shape[1]), min(columns, others)
        # Rows behind the last one are of no group.
        behind = [(0, -num_rows % tile), (0, 0)]
        lhs = jnp.pad(lhs, behind)
        given: Any = dict(
            preferred_element_type=self.dtype, tiling=tiling, interpret=self.is_interpreted
        )
        if self.form.makes_weights:
            return kernels.tgmm(lhs.T, jnp.pad(rhs, behind), sizes, **given)
        made: Any = kernels.gmm(lhs, rhs, sizes, transpose_rhs=self.form.is_transposed, **given)
        return only_rows_of(sizes, made[:num_rows], 0)

    def _columns(self, rhs: Any) -> int:
        return rhs.shape[1 if self.form.makes_weights or self.form.is_transposed else 2]

    def _moved_again(self, lhs: Any, rhs: Any) -> float:
        """Bytes of blocks that come from HBM more than once.

        Rows come once for each block of columns. For ``gmm`` a matrix comes once for each block of
        its expert's rows, unless all that is contracted fits one block; for ``tgmm`` rows of the
        second kind come once for each block of the first one's features.
        """
        rows, features, columns = (
            -(-size // tile)
            for size, tile in zip((*lhs.shape, self._columns(rhs)), self.form.tiling, strict=True)
        )
        again = (columns - 1.0) * lhs.size * lhs.dtype.itemsize
        if self.form.makes_weights:
            return again + (features - 1.0) * rhs.size * rhs.dtype.itemsize
        if features == 1:
            return again
        return again + (rows - 1.0) * rhs.size / rhs.shape[0] * rhs.dtype.itemsize


def local_grouped_matmul(key: str) -> LocalFunction:
    """The function of one device that a key says: ``GroupedMatmul`` and a platform."""
    text, platform = key.removeprefix(GROUPED_MATMUL).rsplit(" ", 1)
    (num_experts, tiling, *flags), (left, right, made), is_interpreted = json.loads(text)
    form = Form(num_experts, tuple(tiling), *flags)
    lhs = jax.ShapeDtypeStruct((1, 1), left)
    rhs = jax.ShapeDtypeStruct((1,) * (2 if form.makes_weights else 3), right)
    call = GroupedMatmul(form, jnp.dtype(made), is_interpreted).call(lhs, rhs)
    return lowered_for(call, (lhs.dtype, rhs.dtype, jnp.int32, jnp.int32), platform)


def _tile_of_rows(num_rows: int, wanted: int) -> int:
    """Rows of a block: as many as the author wants, or fewer that divide all; at least half of the
    wanted ones, for else padding costs less."""
    most = min(wanted, -(-num_rows // _LEAST_ROWS) * _LEAST_ROWS)
    for tile in range(most, most // 2, -_LEAST_ROWS):
        if num_rows % tile == 0:
            return tile
    return most
