"""The ops of a planned module as plain records, for tables, files and tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from autoshard.importer.loops import trip_count
from autoshard.ir import mlir, place
from autoshard.ir.attributes import MARK, PIN, STRATEGY
from autoshard.ir.module import functions_of
from autoshard.ir.types import tensor_bytes

# pyright: reportMissingTypeArgument=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
from autoshard.planned.module import Kind, Placement, PlannedBlock, PlannedModule
from autoshard.planned.module import PlannedOp as ModuleOp
from autoshard.planned.summarize import short_name
from autoshard.sharding import Sharding


@dataclass(frozen=True, slots=True)
class PlannedOp:
    """One op of the program."""

    name: str
    """``dot_general``."""
    location: str | None
    """``file:line:col`` of the user's code."""
    types: tuple[str, ...]
    """``f32[8,16]``-like types of its results, as MLIR writes them: ``tensor<8x16xf32>``."""
    shardings: tuple[Sharding | None, ...]
    """Shardings of its results, as their readers find them; None for what is no tensor."""
    strategy: str | None
    """What its operands must be and what it gives: ``[{dp}, {}], [{}, {tp}] -> [{dp}, {tp}]``."""
    is_pinned: bool
    """The user said so, of the op or of what it reads."""


@dataclass(frozen=True, slots=True)
class Reshard:
    """A value that an op needs in another sharding than its producer left it in."""

    reader: str
    """The op that needs it."""
    operand: int
    location: str | None
    type: str
    """As the program has it: ``tensor<8x16xf32>``. What a compiler casts for a matmul first is sent
    in the narrower type (``matmul.rounds_operands`` in docs/design/compilers.md)."""
    before: Sharding
    after: Sharding


def planned_ops(planned: PlannedModule) -> tuple[PlannedOp, ...]:
    """Every op with results, in program order, callees and bodies of loops too."""
    return tuple(_record(op) for block in _blocks(planned) for op in block.ops if op.results)


def reshards(planned: PlannedModule) -> tuple[Reshard, ...]:
    """Every operand whose sharding is not the one its op needs.

    Constants, iotas and broadcast scalars are made again where they are needed.
    """
    found: list[Reshard] = []
    held: dict[Any, Placement | None] = {}
    remade: set[Any] = set()
    for block in _blocks(planned):
        held.update(block.arguments)
        for op in block.ops:
            operands: list[Any] = list(op.op.operands)
            for number, (value, need) in enumerate(zip(operands, _needs(op), strict=True)):
                have = held.get(value)
                if have is None or need is None or have is need or value in remade:
                    continue
                found.append(
                    Reshard(
                        short_name(op.op),
                        number,
                        place(op.op.location),
                        str(value.type),
                        have.sharding,
                        need.sharding,
                    )
                )
            results: list[Any] = list(op.op.results)
            held.update(zip(results, op.results, strict=True))
            if op.kind is Kind.RECOMPUTED:
                remade.update(results)
    return tuple(found)


def callback_bytes(module: mlir.Module) -> tuple[tuple[int, int], ...]:
    """For each operand and result of a call back into Python: its bytes and how often it runs.

    Counts the trips of loops around it, those of unknown length once.
    """
    functions = functions_of(module)
    found: list[tuple[int, int]] = []

    def visit(outer: mlir.Operation, times: int) -> None:
        for region in outer.regions:
            for block in region.blocks:
                for view in block.operations:
                    op = view.operation
                    if op.name == "func.call":
                        callee = mlir.FlatSymbolRefAttr(op.attributes["callee"]).value
                        visit(functions[callee], times)
                    if is_callback(op):
                        values = (*op.operands, *op.results)
                        found.extend((int(tensor_bytes(value.type)), times) for value in values)
                    visit(op, times * _trips(op))

    visit(functions["main"], 1)
    return tuple(found)


def _trips(op: mlir.Operation) -> int:
    """Trips of an op with blocks; a loop of unknown length counts once."""
    if op.name != "stablehlo.while":
        return 1
    return trip_count(op, lambda value: value) or 1


def is_callback(op: mlir.Operation) -> bool:
    """Does an op call back into Python?"""
    return op.name == "stablehlo.custom_call" and "callback" in short_name(op)


def _needs(op: ModuleOp) -> Sequence[Placement | None]:
    """One entry per operand; the reader of a plan may give one for all."""
    count = len(cast("Sequence[Any]", op.op.operands))
    return op.operands if len(op.operands) == count else (None,) * count


def _blocks(planned: PlannedModule) -> Iterator[PlannedBlock]:
    for function in planned.functions:
        yield from _inner(function.body)


def _inner(block: PlannedBlock) -> Iterator[PlannedBlock]:
    """``block``, then the blocks inside its ops, which may read its values."""
    yield block
    for op in block.ops:
        for inner in op.blocks:
            yield from _inner(inner)


def _record(op: ModuleOp) -> PlannedOp:
    attributes = op.op.attributes
    strategy = attributes.get(STRATEGY)
    results: list[Any] = list(op.op.results)
    return PlannedOp(
        name=short_name(op.op),
        location=place(op.op.location),
        types=tuple(str(result.type) for result in results),
        shardings=tuple(found.sharding if found else None for found in op.results),
        strategy=None if strategy is None else mlir.StringAttr(strategy).value,
        is_pinned=PIN in attributes or any(map(_is_marked, op.op.operands)),
    )


def _is_marked(operand: mlir.Value) -> bool:
    owner = operand.owner
    return isinstance(owner, mlir.OpView | mlir.Operation) and short_name(owner.operation) == MARK
