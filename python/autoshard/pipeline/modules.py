"""A module of its own for each task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from autoshard.ir import mlir, new_context, parse_bytes, print_module
from autoshard.ir.attributes import (
    ALIASING_OUTPUT,
    DEFERRED,
    LEVEL,
    MICRO_BATCHES,
    PIPELINE,
    PIPELINE_CHUNKS,
    PIPELINE_STAGES,
    PLAN,
    STAGE,
)
from autoshard.ir.boundary import attributes_at
from autoshard.ir.module import functions_of
from autoshard.ir.symbols import functions_reached
from autoshard.passes.pipeline import run_passes

ExportForm = Literal["autoshard-export-shardy", "autoshard-export-gspmd"]
"""The pass by which tasks are exported."""

_NOT_OF_A_TASK = (MICRO_BATCHES, PIPELINE, PIPELINE_CHUNKS, PIPELINE_STAGES, PLAN)


def task_module(module: mlir.Module, name: str) -> mlir.Module:
    """A task as the ``main`` of a module of its own, in a context of its own.

    Args:
        module: Split into tasks.
        name: Of the function.
    """
    with module.context, mlir.Location.unknown():
        found = mlir.Module.create()
        attributes = module.operation.attributes
        for number in range(len(attributes)):
            if attributes[number].name not in _NOT_OF_A_TASK:
                found.operation.attributes[attributes[number].name] = attributes[number].attr
        found.operation.attributes["sym_name"] = mlir.StringAttr.get("task")
        functions = functions_of(module)
        for op in module.body.operations:
            if op.operation.name == "sdy.mesh":
                found.body.append(op.operation.clone(ip=False))
        for called in functions_reached(functions, name):
            function = functions[called].clone(ip=False).operation
            found.body.append(function)
            if called == name:
                function.attributes["sym_name"] = mlir.StringAttr.get("main")
                function.attributes["sym_visibility"] = mlir.StringAttr.get("public")
                for attribute in (STAGE, LEVEL, DEFERRED):
                    if attribute in function.attributes:
                        del function.attributes[attribute]
        return parse_bytes(print_module(found, "bytecode"), new_context(), name)


def donate(module: mlir.Module, results: Mapping[int, int]) -> None:
    """Let arguments of ``main`` give their memory to results: argument -> result."""
    main = functions_of(module)["main"]
    with module.context:
        integer = mlir.IntegerType.get_signless(32)
        arguments = attributes_at(main, "arg_attrs")
        for argument, result in results.items():
            arguments[argument][ALIASING_OUTPUT] = mlir.IntegerAttr.get(integer, result)
        main.attributes["arg_attrs"] = mlir.ArrayAttr.get(
            [mlir.DictAttr.get(entry) for entry in arguments]
        )


def exported(module: mlir.Module, donated: Mapping[int, int], form: ExportForm) -> mlir.Module:
    """A task as a compiler gets it, in a context of its own; ``module`` stays as it is.

    Args:
        module: Of the task, planned.
        donated: Which argument gives its memory to which result.
        form: For which partitioner.
    """
    found = copy_of(module)
    donate(found, donated)
    run_passes(found, [form])
    return found


def copy_of(module: mlir.Module) -> mlir.Module:
    """The same module in a context of its own."""
    return parse_bytes(print_module(module, "bytecode"), new_context())
