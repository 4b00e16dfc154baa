"""Where XLA's partitioner does not take the steps of least resharding between values.

Sums of a matmul are scattered where both operands are read as they lie. Where one is not, and they
lie unlike along what is summed, or the dim that the sums are scattered along is cut already, the
partitioner gathers an operand whole and sums nothing. Compiled ahead of time for 8 GPUs by jaxlib
0.10.2, ``x^T y`` and ``h w`` with a mesh of a=4, b=2; run nowhere:

    x [{a, b}, {}]   y [{a}, {b}]      ->  [{}, {b}]      gathers x over b, reduces over a
    x [{a, b}, {}]   y [{a}, {b}]      ->  [{}, {b, a}]   gathers x over a, b
    x [{a}, {}]      y [{a}, {b}]      ->  [{}, {b, a}]   reduce-scatters over a
    h [{a}, {b}]     w [{b}, {a}]      ->  [{a, b}, {}]   gathers h over a, and w
    h [{a}, {b}]     w [{b}, {}]       ->  [{a, b}, {}]   reduce-scatters over b
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from autoshard import _core
from autoshard._core import Place
from autoshard.explain.question import Dims
from autoshard.explain.reproduced import Propagated, SentOnce
from autoshard.importer.imported_program import ImportedProgram
from autoshard.ir import element_bits, mlir, stablehlo
from autoshard.planned.summarize import line_of_op
from autoshard.sharding import Mesh

_DOT = "stablehlo.dot_general"


def as_partitioned(found: Propagated) -> Propagated:
    """With what the partitioner gathers for matmuls in place of the sums that it does not scatter.

    Args:
        found: What takes least resharding.
    """
    program, plan = found.imported, found.plan
    rows: list[Dims] = [tuple(map(tuple, dims)) for dims in plan.shardings]
    gathered, indices = dict(_gathered(program, plan, rows)), plan.reshards.index
    if not gathered:
        return found
    kept = [one for one in found.collectives if one.reshard not in gathered]
    return replace(
        found,
        collectives=(*kept, *gathered.values()),
        cut_otherwise=frozenset(indices[row] for row in gathered),
    )


def _gathered(
    program: ImportedProgram, plan: _core.CorePlan, rows: Sequence[Dims]
) -> Iterator[tuple[int, SentOnce]]:
    """Reshards of sums that are not scattered, by their rows, and what is gathered for each."""
    table = plan.reshards
    columns = zip(table.place, table.index, table.partial_axes, table.trips, strict=True)
    held = plan.value_sharding
    for row, (place, op, partial, trips) in enumerate(columns):
        if place is not Place.RESULT or not partial or program.core_ops[op].name != _DOT:
            continue
        summed = [dim for dim in rows[table.to_sharding[row]] if _has_any(dim, partial)]
        operands, _ = plan.strategies[plan.op_strategy[op]]
        values = program.program.operands_of(op)[:2]
        lie = [rows[held[value]] for value in values]
        is_as_held = all(rows[one] == dims for one, dims in zip(operands, lie, strict=False))
        is_cut_already = any(not _has_any(dim[:1], partial) for dim in summed)
        if not summed or is_as_held or not (is_cut_already or _is_unlike(program, op, lie)):
            continue
        read = program.core_ops[op].operands
        sizes = [_gather(program.mesh, one.type, dims) for one, dims in zip(read, lie, strict=True)]
        size, axes = min((one for one in sizes if one[0]), default=(0.0, ()))
        if size:
            key = ("all-gather", axes, line_of_op(program, op))
            yield row, SentOnce(key, size * trips, row)


def _has_any(axes: Sequence[int], mask: int) -> bool:
    return any(mask >> axis & 1 for axis in axes)


def _is_unlike(program: ImportedProgram, op: int, lie: Sequence[Dims]) -> bool:
    """Do the operands of a matmul lie unlike along what is summed?"""
    attribute = program.core_ops[op].attributes["dot_dimension_numbers"]
    numbers = stablehlo.DotDimensionNumbers(attribute)
    left = [lie[0][dim] for dim in numbers.lhs_contracting_dimensions]
    return left != [lie[1][dim] for dim in numbers.rhs_contracting_dimensions]


def _gather(mesh: Mesh, type_: mlir.Type, dims: Dims) -> tuple[float, tuple[str, ...]]:
    """Bytes that a device sends to gather what lies so, and the axes that it is gathered over."""
    shaped = mlir.ShapedType(type_)
    axes = sorted(axis for dim in dims for axis in dim)
    pieces = prod(mesh.axis_sizes[axis] for axis in axes)
    size = prod(shaped.shape) * element_bits(shaped.element_type) / 8
    return size * (1 - 1 / pieces), tuple(mesh.axis_names[axis] for axis in axes)
