"""What fragments call: a function for each task, equal tasks one, and the numbers of micro-batches.

A function says on what mesh it runs, and what else is on a device meanwhile:

    func.func private @stage0_loop0(%x: tensor<2x4xf32> {sdy.sharding = ..}, ..)
        attributes {mesh_shape = #sdy.mesh<["dp"=2]>, reserved_hbm_bytes = 124 : i64}
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.ir import mlir, parse_bytes, print_module
from autoshard.ir.functions import add_functions
from autoshard.ir.module import functions_of
from autoshard.pipeline.modules import exported
from autoshard.pipeline.order import StagedStep
from autoshard.sharding import Mesh
from autoshard.sharding.sdy_text import mesh_to_sdy

NUMBERS = "micro_batch_numbers"
"""The function that returns the numbers of micro-batches."""


def add_tasks(made: mlir.Module, step: StagedStep, mesh: Mesh) -> dict[str, mlir.Operation]:
    """Add the functions of all tasks, with what they call.

    Args:
        made: Gets them.
        step: Of which the tasks are.
        mesh: Of each stage.

    Returns:
        By name of the task; equal tasks share the function of the first one.
    """
    first: dict[bytes, str] = {}
    found: dict[str, mlir.Operation] = {}
    beside: dict[str, int] = {}
    for task in step.program.tasks:
        donated = step.donations.get(task.name, {})
        module = exported(step.modules[task.name], donated, "autoshard-export-shardy")
        name = first.setdefault(print_module(module), task.name)
        if name not in found:
            own = parse_bytes(print_module(module, "bytecode"), made.context, name)
            _copy_meshes(own, made)
            add_functions(made.operation, own, name, keeps_boundary=True)
            found[name] = functions_of(made)[name]
            found[name].attributes["mesh_shape"] = mlir.Attribute.parse(mesh_to_sdy(mesh))
        found[task.name] = found[name]
        beside[name] = max(step.beside_bytes(task.name), beside.get(name, 0))
    integer = mlir.IntegerType.get_signless(64)
    for name, bytes_ in beside.items():
        found[name].attributes["reserved_hbm_bytes"] = mlir.IntegerAttr.get(integer, bytes_)
    return found


def _copy_meshes(own: mlir.Module, made: mlir.Module) -> None:
    present = {str(op) for op in made.body.operations if op.operation.name == "sdy.mesh"}
    for op in own.body.operations:
        if op.operation.name == "sdy.mesh" and str(op) not in present:
            made.body.append(op.operation.clone(ip=False))


def mesh_symbol(made: mlir.Module, mesh: Mesh) -> str:
    """The name of the ``sdy.mesh`` that a module has for a mesh."""
    wanted = mlir.Attribute.parse(mesh_to_sdy(mesh))
    return next(
        mlir.StringAttr(op.operation.attributes["sym_name"]).value
        for op in made.body.operations
        if op.operation.name == "sdy.mesh" and op.operation.attributes["mesh"] == wanted
    )


def add_numbers(made: mlir.Module, numbers: Sequence[int], mesh: Mesh) -> mlir.Operation:
    """Add a function without arguments that returns whole numbers of 32 bits.

    Args:
        made: Gets it.
        numbers: In order.
        mesh: Of each stage.
    """
    integer = mlir.Type.parse("tensor<i32>")
    type_ = mlir.FunctionType.get([], [integer] * len(numbers))
    function = mlir.Operation.create(
        "func.func",
        attributes={
            "sym_name": mlir.StringAttr.get(NUMBERS),
            "sym_visibility": mlir.StringAttr.get("private"),
            "function_type": mlir.TypeAttr.get(type_),
            "mesh_shape": mlir.Attribute.parse(mesh_to_sdy(mesh)),
        },
        regions=1,
        ip=mlir.InsertionPoint(made.body),
    )
    where = mlir.InsertionPoint(function.regions[0].blocks.append())
    constants = [
        mlir.Operation.create(
            "stablehlo.constant",
            results=[integer],
            attributes={"value": mlir.Attribute.parse(f"dense<{number}> : tensor<i32>")},
            ip=where,
        ).results[0]
        for number in numbers
    ]
    mlir.Operation.create("func.return", operands=constants, ip=where)
    return function


def function_type(function: mlir.Operation) -> mlir.FunctionType:
    """The types of a function's arguments and results."""
    return mlir.FunctionType(mlir.TypeAttr(function.attributes["function_type"]).value)


def fill(fragment: mlir.Operation, function: mlir.Operation) -> None:
    """Give a fragment a copy of the ops of a function."""
    types = function_type(function).inputs
    places = [function.location] * len(types)
    block = fragment.regions[0].blocks.append(*types, arg_locs=places)
    body = function.clone(ip=False).operation.regions[0].blocks[0]
    for old, new in zip(body.arguments, block.arguments, strict=True):
        old.replace_all_uses_with(new)
    for op in list(body.operations):
        block.append(op.operation)
    end = block.operations[len(block.operations) - 1].operation
    results, where = list(end.operands), end.location
    end.erase()
    mlir.Operation.create("mpmd.return", operands=results, loc=where, ip=mlir.InsertionPoint(block))
