"""A task becomes a function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoshard.errors import AutoshardError
from autoshard.ir import mlir, place
from autoshard.ir.attributes import DEFERRED, LEVEL, MHLO_SHARDING, STAGE
from autoshard.ir.module import operations_of
from autoshard.rewrites.stage_tasks.tasks import Task, outer_uses, outer_values
from autoshard.sharding.hlo_text import NamedHlo, parse_hlo, to_v2


@dataclass(frozen=True, slots=True)
class Given:
    """What a task takes or returns."""

    value: mlir.Value
    sharding: str | None
    """As ``mhlo.sharding``; None: nothing is planned."""


@dataclass(frozen=True, slots=True, eq=False)
class Outlined:
    """A task as a function."""

    task: Task
    name: str
    reads: tuple[mlir.Value, ...]
    """Values that were its operands, in the order of its arguments."""
    gives: tuple[Given, ...]
    """What it returns, in order."""


def shardings_of(op: mlir.Operation) -> list[str | None]:
    """The planned sharding of each result of an op.

    Raises:
        AutoshardError: It cannot be read.
    """
    count = len(op.results)
    if MHLO_SHARDING not in op.attributes or not count:
        return [None] * count
    text = mlir.StringAttr(op.attributes[MHLO_SHARDING]).value
    if count == 1:
        return [text]
    try:
        read = parse_hlo(text)
    except AutoshardError as error:
        raise type(error)(f"{op.name}: {error.message}", place(op.location)) from error
    elements = read if isinstance(read, tuple) else (read,)
    return [
        to_v2(element.sharding) if isinstance(element, NamedHlo) else str(element)
        for element in elements
    ]


def sharding_attribute(shardings: Sequence[str | None]) -> dict[str, mlir.Attribute]:
    """``mhlo.sharding`` of an op with these results; empty where nothing is planned."""
    if not shardings or any(sharding is None for sharding in shardings):
        return {}
    texts = [sharding for sharding in shardings if sharding is not None]
    text = texts[0] if len(texts) == 1 else "{" + ", ".join(texts) + "}"
    return {MHLO_SHARDING: mlir.StringAttr.get(text)}


def outline(
    module: mlir.Module,
    task: Task,
    name: str,
    reads: Sequence[Given],
    gives: Sequence[Given],
) -> Outlined:
    """Move the ops of a task into a private function at the end of the module.

    Args:
        module: The program; expects its context.
        task: Its ops are moved; where their results are read elsewhere is not changed.
        name: Of the function.
        reads: What it takes; values of others.
        gives: What it returns; values of the task.
    """
    types = [taken.value.type for taken in reads], [given.value.type for given in gives]
    why = task.ops[0].location if task.ops else mlir.Location.unknown()
    integer = mlir.IntegerType.get_signless(32)
    attributes: dict[str, mlir.Attribute] = {
        "sym_name": mlir.StringAttr.get(name),
        "sym_visibility": mlir.StringAttr.get("private"),
        "function_type": mlir.TypeAttr.get(mlir.FunctionType.get(*types)),
        STAGE: mlir.IntegerAttr.get(integer, task.key.stage),
        LEVEL: mlir.IntegerAttr.get(integer, task.key.level),
        "arg_attrs": _boundary([taken.sharding for taken in reads]),
        "res_attrs": _boundary([given.sharding for given in gives]),
    }
    if task.key.is_deferred:
        attributes[DEFERRED] = mlir.UnitAttr.get()
    function = mlir.Operation.create(
        "func.func", attributes=attributes, regions=1, loc=why, ip=mlir.InsertionPoint(module.body)
    )
    block = function.regions[0].blocks.append(*types[0], arg_locs=[why] * len(reads))
    values = tuple(taken.value for taken in reads)
    arguments = dict(zip(values, block.arguments, strict=True))
    for op in task.ops:
        if not arguments.keys().isdisjoint(outer_values(op)):
            for user, number in outer_uses(op):
                value = user.operands[number]
                if value in arguments:
                    user.operands[number] = arguments[value]
        for each in operations_of(op) if len(op.regions) else [op]:
            for label in (STAGE, LEVEL):
                if label in each.attributes:
                    del each.attributes[label]
        block.append(op)
    mlir.Operation.create(
        "func.return",
        operands=[given.value for given in gives],
        loc=why,
        ip=mlir.InsertionPoint(block),
    )
    return Outlined(task, name, values, tuple(gives))


def _boundary(shardings: Sequence[str | None]) -> mlir.ArrayAttr:
    entries: list[dict[str, mlir.Attribute]] = [
        {} if text is None else {MHLO_SHARDING: mlir.StringAttr.get(text)} for text in shardings
    ]
    return mlir.ArrayAttr.get([mlir.DictAttr.get(entry) for entry in entries])
