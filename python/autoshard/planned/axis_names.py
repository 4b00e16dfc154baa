"""Names for the axes of a mesh that the search made up: ``data``, ``fsdp``, ``model``, ...

The search cuts along parts of physical axes (``x0``, ``x1``, ``y0``) and merges what it always
uses together. What an axis is for shows in what it cuts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from autoshard import _core
from autoshard.importer.imported_program import NO_VALUE, ImportedProgram
from autoshard.ir import mlir, stablehlo
from autoshard.ir.attributes import attribute_of
from autoshard.planned.summarize import main_values
from autoshard.planned.summary import AxisSummary
from autoshard.sharding import Axis, Mesh

_DIMS = "dot_dimension_numbers"
"""Attribute of ``dot_general`` alone."""

_SOME = 0.01
"""Share of the work of ops that are no matmuls, from which cutting it matters."""


@dataclass(slots=True)
class _Cuts:
    """What one axis cuts."""

    batch: bool = False
    """Dim 0 of an input."""
    sequence: bool = False
    """A dim of ids behind the first, or one of an array between the first and the last."""
    spatial: bool = False
    """The latter of an image: an input of rank 4 or more."""
    parameters: bool = False
    """An array that the step returns for the next one."""
    columns: float = 0.0
    """Work of the matmuls whose right operands it cuts, in columns or in the contracted dim."""
    rows: float = 0.0
    """Work of the matmuls whose left operands only it cuts."""
    batched: float = 0.0
    """Work of the matmuls whose batch dims it cuts, as of experts or heads."""
    others: float = 0.0
    """Share of the work of all other ops that it cuts."""


def name_axes(
    imported: ImportedProgram, plan: _core.CorePlan
) -> tuple[Mesh, tuple[AxisSummary, ...]]:
    """The mesh of a plan whose axes are groups of the imported program's axes.

    Returns:
        The mesh, and what each of its axes is for.
    """
    levels = imported.mesh.axes
    groups: Sequence[Sequence[int]] = plan.axis_groups
    cuts = _cuts(imported, plan, len(groups))
    names: list[str] = []
    axes: list[AxisSummary] = []
    for group, cut in zip(groups, cuts, strict=True):
        parts = [levels[level].name for level in group]
        physical = ",".join(parts)
        name, role = _role(cut)
        name = _free(name or _physical_name(parts), names)
        names.append(name)
        size = prod(levels[level].size for level in group)
        axes.append(AxisSummary(name, size, role, physical))
    if not axes:
        axes.append(AxisSummary("data", 1, "nothing", ""))
    mesh = Mesh(tuple(Axis(axis.name, axis.size) for axis in axes), imported.mesh.device_ids)
    return mesh, tuple(axes)


def describe_axes(
    imported: ImportedProgram, plan: _core.CorePlan, lies_on: Mapping[str, str]
) -> tuple[AxisSummary, ...]:
    """What each axis of the imported program's own mesh is for; names stay.

    Args:
        imported: The program.
        plan: Its plan.
        lies_on: What axes are made of, where more is to be said of one than its name.
    """
    cuts = _cuts(imported, plan, len(imported.mesh.axes))
    return tuple(
        AxisSummary(axis.name, axis.size, _role(cut)[1], lies_on.get(axis.name, axis.name))
        for axis, cut in zip(imported.mesh.axes, cuts, strict=True)
    )


def _physical_name(parts: Sequence[str]) -> str:
    """``node_gpu`` for ``node0``, ``node1`` and ``gpu0``, and for ``node0_node1`` and ``gpu0``."""
    alone = [name for part in parts for name in part.split("_")]
    return "_".join(dict.fromkeys(name.rstrip("0123456789") for name in alone))


def _free(name: str, taken: Sequence[str]) -> str:
    """``name``, or with the first number that makes it new."""
    if name not in taken:
        return name
    number = 2
    while f"{name}{number}" in taken:
        number += 1
    return f"{name}{number}"


def _role(cut: _Cuts) -> tuple[str, str]:
    """Name of the axis, empty for its physical one, and what to say of it."""
    also = " and parameters" if cut.parameters else ""
    if cut.batch:
        return "fsdp" if cut.parameters else "data", f"batch{also}"
    if cut.spatial:
        return "spatial", f"images{also}"
    if cut.sequence:
        return "sequence", f"sequence{also}"
    most = max(cut.columns, cut.rows, cut.batched)
    if most == 0 and cut.parameters:
        return "model", "parameters"
    if most == 0:
        return (
            "",
            "work of other ops than matmuls" if cut.others > _SOME else "nothing that matters",
        )
    if most == cut.batched and cut.parameters:
        return "expert", "batch dims of matmuls and parameters"
    if most == cut.columns:
        return "model", f"columns or rows of matmuls{also}"
    return "data", f"rows of activations{also}"


def _cuts(imported: ImportedProgram, plan: _core.CorePlan, count: int) -> list[_Cuts]:
    cuts = [_Cuts() for _ in range(count)]
    _cut_by_arguments(imported, plan, cuts)
    _cut_by_matmuls(imported, plan, cuts)
    _cut_by_others(imported, plan, cuts)
    return cuts


def _cut_by_arguments(imported: ImportedProgram, plan: _core.CorePlan, cuts: list[_Cuts]) -> None:
    main = main_values(imported)
    shardings, of_value = plan.shardings, plan.value_sharding
    block = main.op.regions[0].blocks[0]
    inputs, parameters = _inputs_and_parameters(imported, list(block.arguments))
    for number, (value, argument) in enumerate(zip(main.arguments, block.arguments, strict=True)):
        if value == NO_VALUE:
            continue
        dims = shardings[of_value[value]]
        for dim, axes in enumerate(dims):
            for axis in axes:
                cut = cuts[axis]
                if number not in inputs:
                    cut.parameters |= number in parameters
                elif dim == 0:
                    cut.batch = True
                elif dim < len(dims) - 1 and len(dims) >= 4:
                    cut.spatial = True
                elif dim < len(dims) - 1 or _is_integer(argument):
                    cut.sequence = True


def _inputs_and_parameters(
    imported: ImportedProgram, arguments: Sequence[mlir.Value]
) -> tuple[set[int], set[int]]:
    """Numbers of arguments that are data of one call, and of those that are parameters.

    A training step returns its parameters, and what no result replaces is data. A decode step
    returns its cache: of the rest, floats are parameters if there are ids and they have other
    rows than those.
    """
    state = imported.state
    integers = {number for number, value in enumerate(arguments) if _is_integer(value)}
    if not state:
        return integers, set()
    rest = set(range(len(arguments))) - state
    rows = {_rows(arguments[number]) for number in rest & integers}
    kept = {number for number in rest - integers if rows and _rows(arguments[number]) not in rows}
    # Something like a scale is no model: one that is cut has two dims.
    if not any(len(_shape(arguments[number])) > 1 for number in kept):
        return rest, set(state)
    return rest - kept, kept


def _shape(value: mlir.Value) -> Sequence[int]:
    return value.type.shape if isinstance(value.type, mlir.RankedTensorType) else ()


def _rows(value: mlir.Value) -> int | None:
    shape = _shape(value)
    return shape[0] if shape else None


def _is_integer(value: mlir.Value) -> bool:
    """Ids of tokens, labels: the inputs of a program that returns no state."""
    type_ = value.type
    return isinstance(type_, mlir.RankedTensorType) and isinstance(
        type_.element_type, mlir.IntegerType
    )


def _cut_by_matmuls(imported: ImportedProgram, plan: _core.CorePlan, cuts: list[_Cuts]) -> None:
    trips, flops = imported.program.op_trips, plan.op_flops
    strategies, of_op, shardings = plan.strategies, plan.op_strategy, plan.shardings
    works: dict[tuple[mlir.Attribute | None, int], float] = {}
    for number in imported.matrix_ops:
        key = attribute_of(imported.core_ops[number], _DIMS), of_op[number]
        works[key] = works.get(key, 0.0) + flops[number] * trips[number]
    for (numbers, strategy), work in works.items():
        (left, right, *_), _ = strategies[strategy]
        batch, contracted = _left_dims(numbers)
        for axis in _cut_axes(shardings, right):
            cuts[axis].columns += work
        for dim, axes in enumerate(shardings[left] if left != NO_VALUE else ()):
            for axis in axes:
                cut = cuts[axis]
                if dim in batch:
                    cut.batched += work
                    cut.columns -= work
                elif dim not in contracted:
                    cut.rows += work


def _cut_by_others(imported: ImportedProgram, plan: _core.CorePlan, cuts: list[_Cuts]) -> None:
    trips, flops = imported.program.op_trips, plan.op_flops
    matrix_ops = set(imported.matrix_ops)
    works: dict[int, float] = {}
    for number, strategy in enumerate(plan.op_strategy):
        if number not in matrix_ops:
            works[strategy] = works.get(strategy, 0.0) + flops[number] * trips[number]
    together = sum(works.values())
    for strategy, work in works.items():
        operands, results = plan.strategies[strategy]
        rows = {*operands, *results}
        for axis in {axis for row in rows for axis in _cut_axes(plan.shardings, row)}:
            cuts[axis].others += work / together if together else 0.0


def _left_dims(dims: mlir.Attribute | None) -> tuple[frozenset[int], frozenset[int]]:
    """Batch dims and contracted dims of a matmul's left operand."""
    if dims is None:
        return frozenset(), frozenset()
    numbers = stablehlo.DotDimensionNumbers(dims)
    return (
        frozenset(numbers.lhs_batching_dimensions),
        frozenset(numbers.lhs_contracting_dimensions),
    )


def _cut_axes(shardings: Sequence[Sequence[Sequence[int]]], index: int) -> set[int]:
    if index == NO_VALUE:
        return set()
    return {axis for axes in shardings[index] for axis in axes}
