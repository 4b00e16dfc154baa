"""What a kernel computes and reads, counted over its grid."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod, sqrt

import numpy as np
from numpy.typing import NDArray

from autoshard.ir import element_bits, mlir
from autoshard.kernels.mosaic import Kernel, Window, op_name
from autoshard.kernels.scalars import Integers, Scalars, roots

_MATMULS = ("tpu.matmul", "vector.contract")
_TRANSCENDENTAL = 10.0
"""Operations that vector units take for one, as ``importer/work.py`` has it."""


Amount = NDArray[np.float64]
"""An amount at all places of a grid together, of shape ``()``, or at each along one of its dims."""


@dataclass(slots=True)
class KernelWork:
    """Operations of a kernel."""

    matmul_flops: Amount = field(default_factory=lambda: np.zeros(()))
    """Two for each multiply-add."""
    vector_flops: Amount = field(default_factory=lambda: np.zeros(()))
    product: mlir.Type | None = None
    """Elements that are multiplied, those of the first matmul."""


def kernel_work(
    kernel: Kernel, tables: Sequence[Integers | None], along: int | None = None
) -> KernelWork:
    """Operations, at those places where conditions let them happen.

    Args:
        kernel: Any.
        tables: Contents of its tables, None where they are not known. A condition that is not
            known counts as true.
        along: A dim of the grid; work is told for each place along it then.
    """
    rank = len(kernel.grid)
    known: dict[mlir.Value, Integers] = {}
    for dim, (value, size) in enumerate(zip(kernel.place, kernel.grid, strict=True)):
        shape = [1] * rank
        shape[dim] = size
        known[value] = np.arange(size).reshape(shape)
    for value, contents in zip(kernel.tables, tables, strict=True):
        if contents is not None:
            known[value] = contents
    counter = _Counter(Scalars(known), tuple(dim for dim in range(rank) if dim != along))
    work = KernelWork()
    counter.count(kernel.body, np.ones([1] * rank, bool), work)
    places = float(prod(size for dim, size in enumerate(kernel.grid) if dim != along))
    work.matmul_flops = work.matmul_flops * places
    work.vector_flops = work.vector_flops * places
    return work


@dataclass(frozen=True)
class _Counter:
    """Counts the operations of a body, on average over some dims of the grid."""

    scalars: Scalars
    averaged: tuple[int, ...]

    def count(self, block: mlir.Block, runs: NDArray[np.bool_], work: KernelWork) -> None:
        """Add what a block does at those places where it ``runs``."""
        for each in block.operations:
            op = each.operation
            name = op_name(op)
            if name == "scf.if":
                condition = self.scalars.value(op.operands[0])
                for number, region in enumerate(op.regions):
                    if not len(region.blocks):
                        continue
                    also = runs
                    if condition is not None:
                        also = runs & ((condition != 0) if number == 0 else (condition == 0))
                    self.count(region.blocks[0], also, work)
            elif len(op.regions):
                trips = self._trips(op, runs.ndim)
                inside = KernelWork()
                for region in op.regions:
                    for inner in region.blocks:
                        self.count(inner, runs, inside)
                work.matmul_flops = work.matmul_flops + trips * inside.matmul_flops
                work.vector_flops = work.vector_flops + trips * inside.vector_flops
                work.product = work.product or inside.product
            elif name in _MATMULS:
                work.matmul_flops = work.matmul_flops + self._mean(runs) * _matmul_flops(op)
                work.product = work.product or mlir.VectorType(op.operands[0].type).element_type
            elif len(op.results) and isinstance(op.results[0].type, mlir.VectorType):
                flops = _vector_flops(name, op.results[0].type)
                work.vector_flops = work.vector_flops + self._mean(runs) * flops

    def _mean(self, values: NDArray[np.generic]) -> Amount:
        return np.asarray(values, np.float64).mean(self.averaged)

    def _trips(self, op: mlir.Operation, rank: int) -> Amount:
        """Trips of ``scf.for``; 1 for other loops, of which nothing is known."""
        if op_name(op) != "scf.for":
            return np.ones(())
        low, high, step = (self.scalars.value(operand) for operand in list(op.operands)[:3])
        if low is None or high is None or step is None:
            return np.ones(())
        trips = np.maximum(0, -((low - high) // np.maximum(1, step)))
        return self._mean(trips.reshape([1] * (rank - trips.ndim) + list(trips.shape)))


def _matmul_flops(op: mlir.Operation) -> float:
    left, right, made = (
        float(prod(mlir.VectorType(value.type).shape))
        for value in (op.operands[0], op.operands[1], op.results[0])
    )
    # Rows x contracted, contracted x columns and rows x columns; a batch is in all three.
    numbers = str(op.attributes["dimension_numbers"]) if op_name(op) == "tpu.matmul" else ""
    found = re.search(r"dimension_numbers<\[([\d, ]*)\]", numbers)
    if found is not None:
        shape = mlir.VectorType(op.operands[0].type).shape
        return 2.0 * made * prod(shape[int(dim)] for dim in found[1].split(",") if dim.strip())
    return 2.0 * made * sqrt(left * right / made)


def _vector_flops(name: str, type_: mlir.VectorType) -> float:
    elements = float(prod(type_.shape))
    if name.startswith("math."):
        return _TRANSCENDENTAL * elements
    return elements if name.startswith("arith.") and name != "arith.constant" else 0.0


_MOST_PLACES = 2**22
"""Most places of a grid that is walked through place by place."""


def bytes_moved(
    kernel: Kernel, types: Sequence[mlir.Type], tables: Sequence[Integers | None]
) -> list[float]:
    """Bytes between HBM and blocks, for each window: a block is moved whenever its place changes.

    Args:
        kernel: Any.
        types: Of the array behind each window.
        tables: Contents of its tables, None where they are not known.
    """
    return [
        _moved(kernel, window, mlir.RankedTensorType(type_), tables)
        for window, type_ in zip(kernel.windows, types, strict=True)
    ]


def _moved(
    kernel: Kernel,
    window: Window | None,
    type_: mlir.RankedTensorType,
    tables: Sequence[Integers | None],
) -> float:
    size = element_bits(type_.element_type) / 8
    if window is None:
        return prod(type_.shape) * size
    needed = set[mlir.Value]().union(*map(roots, window.place))
    followed = [dim for dim, place in enumerate(window.grid) if place in needed]
    # The last dim of the grid is the fastest.
    walked = kernel.grid[: followed[-1] + 1] if followed else ()
    changes = _changes(window, walked, tables) or prod(walked)
    return changes * prod(window.block) * size


def _changes(
    window: Window, walked: tuple[int, ...], tables: Sequence[Integers | None]
) -> int | None:
    """How many places follow each other along the first dims of the grid; None if not known."""
    if prod(walked) > _MOST_PLACES:
        return None
    known: dict[mlir.Value, Integers] = {
        value: np.arange(size).reshape(-1, *[1] * (len(walked) - dim - 1))
        for dim, (value, size) in enumerate(zip(window.grid, walked, strict=False))
    }
    given = zip(window.tables, tables, strict=True)
    known |= {value: contents for value, contents in given if contents is not None}
    scalars = Scalars(known)
    differs = np.zeros(max(0, prod(walked) - 1), bool)
    for value in window.place:
        along = scalars.value(value)
        if along is None:
            return None
        differs |= np.diff(np.broadcast_to(along, walked).ravel()) != 0
    return 1 + int(np.count_nonzero(differs))
