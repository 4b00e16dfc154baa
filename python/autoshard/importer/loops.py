"""How often a ``stablehlo.while`` runs."""

from __future__ import annotations

from collections.abc import Callable

from autoshard.ir import mlir
from autoshard.ir.attributes import constant_integers

Resolve = Callable[[mlir.Value], mlir.Value]
"""Follows a value through calls to where it is made."""


def trip_count(loop: mlir.Operation, resolve: Resolve) -> int | None:
    """Trips of a counted loop, as ``lax.scan`` and ``lax.fori_loop`` make them; else None.

    Counted: the condition compares one carried integer with a constant, the loop starts it at
    a constant and its body adds a constant.
    """
    condition, body = (region.blocks[0] for region in loop.regions)
    compare = _owner(resolve(condition.operations[len(condition.operations) - 1].operands[0]))
    if compare is None or compare.name != "stablehlo.compare":
        return None
    direction = str(compare.attributes["comparison_direction"]).split()[-1].rstrip(">")
    left, right = (resolve(operand) for operand in compare.operands)
    # limit < counter reads the other way round
    turned = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE"}.get(direction, direction)
    for counter, limit, reads in ((left, right, direction), (right, left, turned)):
        index = _argument_index(counter, condition)
        if index is None:
            continue
        last = _limit(limit, condition, loop, body, resolve)
        first = _integer(resolve(loop.operands[index]))
        step = _step(body, index, resolve)
        if last is not None and first is not None and step:
            return _count(first, last, step, reads)
    return None


def _count(first: int, last: int, step: int, direction: str) -> int | None:
    if direction in ("LE", "GE"):
        last += 1 if direction == "LE" else -1
    elif direction == "NE":
        if (last - first) % step or (last - first) // step < 0:
            return None
    elif direction not in ("LT", "GT"):
        return None
    if (direction in ("LT", "LE") and step < 0) or (direction in ("GT", "GE") and step > 0):
        return None
    return max(0, -((first - last) // step))


def _limit(
    limit: mlir.Value,
    condition: mlir.Block,
    loop: mlir.Operation,
    body: mlir.Block,
    resolve: Resolve,
) -> int | None:
    """A constant, or a carried value that starts constant and is passed on as it is."""
    index = _argument_index(limit, condition)
    if index is None:
        return _integer(limit)
    yielded = resolve(body.operations[len(body.operations) - 1].operands[index])
    if _argument_index(yielded, body) != index:
        return None
    return _integer(resolve(loop.operands[index]))


def _step(body: mlir.Block, index: int, resolve: Resolve) -> int | None:
    """The constant that the body adds to carried value ``index``."""
    yielded = _owner(resolve(body.operations[len(body.operations) - 1].operands[index]))
    if yielded is None or yielded.name not in ("stablehlo.add", "stablehlo.subtract"):
        return None
    left, right = (resolve(operand) for operand in yielded.operands)
    if _argument_index(left, body) != index:
        left, right = right, left
        if yielded.name == "stablehlo.subtract":
            return None
    if _argument_index(left, body) != index:
        return None
    step = _integer(right)
    if step is None:
        return None
    return -step if yielded.name == "stablehlo.subtract" else step


def _owner(value: mlir.Value) -> mlir.Operation | None:
    owner = value.owner
    return None if isinstance(owner, mlir.Block) else owner.operation


def _argument_index(value: mlir.Value, block: mlir.Block) -> int | None:
    if not isinstance(value, mlir.BlockArgument):
        return None
    argument = mlir.BlockArgument(value)
    return argument.arg_number if argument.owner == block else None


def _integer(value: mlir.Value) -> int | None:
    owner = _owner(value)
    if owner is None:
        return None
    if owner.name == "stablehlo.convert":
        return _integer(owner.operands[0])
    if owner.name != "stablehlo.constant":
        return None
    values = constant_integers(owner)
    return int(values[0]) if values is not None and len(values) == 1 else None
