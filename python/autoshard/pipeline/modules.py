"""A module of its own for each task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
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
from autoshard.rewrites.stage_tasks.split import SplitProgram, SplitTask
from autoshard.rewrites.stage_tasks.write import empty_function, split_stages, task_function

ExportForm = Literal["autoshard-export-shardy", "autoshard-export-gspmd"]
"""The pass by which tasks are exported."""

_NOT_OF_A_TASK = (MICRO_BATCHES, PIPELINE, PIPELINE_CHUNKS, PIPELINE_STAGES, PLAN)


class TaskModules(Mapping[str, mlir.Module]):
    """The tasks of a planned module, by name, written once somebody asks for one."""

    def __init__(self, bytecode: bytes, names: Sequence[str], *, defers: bool) -> None:
        """Write nothing yet.

        Args:
            bytecode: The planned module, its ops labelled.
            names: Of its tasks.
            defers: As of ``split_stages``.
        """
        self._bytecode, self._names, self._defers = bytecode, tuple(names), defers
        self._found: dict[str, mlir.Module] = {}
        self._lock = Lock()  # tasks are compiled side by side

    def __getitem__(self, name: str) -> mlir.Module:
        with self._lock:
            if not self._found:
                self._found = self._written()
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _written(self) -> dict[str, mlir.Module]:
        module = parse_bytes(self._bytecode, new_context())
        with module.context, mlir.Location.unknown():
            split_stages(module, defers=self._defers)
        return {name: task_module(module, name) for name in self._names}


def task_module(module: mlir.Module, name: str) -> mlir.Module:
    """A task as the ``main`` of a module of its own, in a context of its own.

    Args:
        module: Split into tasks.
        name: Of the function.
    """
    with module.context, mlir.Location.unknown():
        found = _module_like(module)
        function = functions_of(module)[name].clone(ip=False).operation
        _add_main(found, function, functions_of(module))
        return parse_bytes(print_module(found, "bytecode"), new_context(), name)


def lone_task(split: SplitProgram, task: SplitTask) -> mlir.Module:
    """As ``task_module``, of a program of which nothing is written, in its context.

    Args:
        split: The program.
        task: One of its tasks.
    """
    module = split.source.source.module
    found = _module_like(module)
    function = task_function(split, task, mlir.InsertionPoint(found.body))
    _add_main(found, function, functions_of(module))
    return found


def empty_task(split: SplitProgram, values: Sequence[tuple[mlir.Type, str | None]]) -> mlir.Module:
    """A task that takes values of these types and shardings, and does nothing."""
    found = _module_like(split.source.source.module)
    empty_function(values, mlir.InsertionPoint(found.body), split.source.source.main.location)
    return found


def _module_like(module: mlir.Module) -> mlir.Module:
    """A module with meshes and attributes of another one, without those of pipelines."""
    found = mlir.Module.create()
    attributes = module.operation.attributes
    for number in range(len(attributes)):
        if attributes[number].name not in _NOT_OF_A_TASK:
            found.operation.attributes[attributes[number].name] = attributes[number].attr
    found.operation.attributes["sym_name"] = mlir.StringAttr.get("task")
    for op in module.body.operations:
        if op.operation.name == "sdy.mesh":
            found.body.append(op.operation.clone(ip=False))
    return found


def _add_main(
    module: mlir.Module, function: mlir.Operation, others: Mapping[str, mlir.Operation]
) -> None:
    """Let a function be ``main``, and add those of ``others`` that it calls."""
    name = mlir.StringAttr(function.attributes["sym_name"]).value
    module.body.append(function)
    for called in functions_reached({**others, name: function}, name)[1:]:
        module.body.append(others[called].clone(ip=False).operation)
    function.attributes["sym_name"] = mlir.StringAttr.get("main")
    function.attributes["sym_visibility"] = mlir.StringAttr.get("public")
    for attribute in (STAGE, LEVEL, DEFERRED):
        if attribute in function.attributes:
            del function.attributes[attribute]


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
