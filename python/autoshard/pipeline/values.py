"""The values of a program in tasks: shapes, types of elements, shardings inside of a stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from autoshard.ir import element_bits, mlir
from autoshard.ir.boundary import main_function
from autoshard.ir.types import numpy_type
from autoshard.planned.module import Boundary, Placement, read_boundary
from autoshard.rewrites.stage_tasks.program import Call, StageProgram, Transfer
from autoshard.sharding import Sharding


@dataclass(frozen=True, slots=True)
class StageValue:
    """An array on the devices of a stage."""

    shape: tuple[int, ...]
    dtype: Any
    """As NumPy calls it."""
    sharding: Sharding
    local_bytes: float
    """On one device."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Arguments and results of a function."""

    arguments: tuple[StageValue, ...]
    results: tuple[StageValue, ...]


def signature(module: mlir.Module) -> Signature:
    """What the ``main`` of a planned module takes and gives.

    Raises:
        PlanError: Something of it is not planned.
        ImportModuleError: An element type that NumPy does not have.
    """
    boundary: Boundary = read_boundary(module)
    main = main_function(module)
    type_ = mlir.FunctionType(mlir.TypeAttr(main.attributes["function_type"]).value)
    return Signature(
        tuple(map(_value, boundary.arguments, type_.inputs)),
        tuple(map(_value, boundary.results, type_.results)),
    )


def held_bytes(boundary: Signature, donated: Mapping[int, int]) -> float:
    """Bytes on one device of what a task takes and gives.

    Args:
        boundary: Of the task.
        donated: Which argument gives its memory to which result; it counts once.
    """
    taken = sum(value.local_bytes for value in boundary.arguments)
    replacing = set(donated.values())
    given = (value for at, value in enumerate(boundary.results) if at not in replacing)
    return taken + sum(value.local_bytes for value in given)


def _value(placement: Placement | None, type_: mlir.Type) -> StageValue:
    assert placement is not None, "a planned module says where each tensor is"
    tensor = mlir.RankedTensorType(type_)
    shape, sharding = tuple(tensor.shape), placement.sharding
    size = prod(sharding.local_shape(shape)) * element_bits(tensor.element_type) / 8
    return StageValue(shape, numpy_type(tensor.element_type), sharding, size)


def values_of(
    program: StageProgram, main: Signature, tasks: Mapping[str, Signature]
) -> dict[int, StageValue]:
    """Each value of a program, by its number; the number of the micro-batch is none.

    Args:
        program: Its tasks and transfers.
        main: What the step takes.
        tasks: What each task takes and gives, by name.
    """
    found = dict(zip(program.arguments, main.arguments, strict=True))

    def follow(steps: tuple[Call | Transfer, ...]) -> None:
        for step in steps:
            if isinstance(step, Transfer):
                found[step.result] = found[step.operand]
            else:
                found.update(zip(step.results, tasks[step.task.name].results, strict=True))

    follow(program.before)
    for one in program.carried:
        found[one.argument] = found[one.result] = found[one.start]
    follow(program.loop)
    follow(program.after)
    return found
