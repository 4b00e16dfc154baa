"""Warn where an axis of a plan's mesh cuts nothing."""

from __future__ import annotations

from autoshard import _core
from autoshard.importer.imported_program import NO_VALUE, ImportedProgram
from autoshard.ir import mlir, warn
from autoshard.ir.boundary import pads_indivisible
from autoshard.sharding import Mesh


def warn_of_idle_axes(
    module: mlir.Module, imported: ImportedProgram, plan: _core.CorePlan, mesh: Mesh
) -> None:
    """Say so where devices only repeat each other's work because no size divides."""
    if pads_indivisible(module):
        return
    used = {axis for dims in plan.shardings for axes in dims for axis in axes}
    shapes = imported.value_shapes
    arguments = imported.functions[-1].arguments
    sizes = {size for value in arguments if value != NO_VALUE for size in shapes[value]}
    for index, axis in enumerate(mesh.without_unit_axes().axes):
        larger = sorted(size for size in sizes if size > axis.size)
        divides = any(size and size % axis.size == 0 for size in sizes)
        if index in used or not larger or divides:
            continue
        warn(
            f'axis "{axis.name}" of the mesh cuts nothing: no dim of the arguments has {axis.size}'
            f" equal parts, the largest are {', '.join(map(str, larger[:-4:-1]))}. The devices"
            " along it do the same work. Give indivisible=pad, other sizes or other devices."
        )
