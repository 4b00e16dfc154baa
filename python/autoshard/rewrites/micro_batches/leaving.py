"""Values that the loop over micro-batches hands out: what it carries, adds and writes for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autoshard.errors import PlanError
from autoshard.ir import mlir, place
from autoshard.ir.constants import constant, zeros
from autoshard.ir.reading import element_of, shape_of
from autoshard.rewrites.micro_batches.parts import Part, Parts, reshape

Update = Callable[[mlir.Value, mlir.InsertionPoint], mlir.Value]
"""Writes what a carried value is after a trip, of what it was before."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """A value of the loop that ops behind it read."""

    value: mlir.Value
    """As a micro-batch makes it."""
    type: mlir.Type
    """As it is carried; it starts as zeros."""
    update: Update
    finish: Update
    """Writes the value of the whole batch behind the loop, of what was carried."""


def a_sum(value: mlir.Value) -> Leaving:
    """Addends add up."""
    return Leaving(value, value.type, lambda total, ip: _add(total, value, ip), _as_it_is)


def a_mean(value: mlir.Value, count: int) -> Leaving:
    """The mean of what the user takes of each micro-batch.

    Raises:
        PlanError: They are no floating numbers.
    """
    why = maker_of(value).location
    if isinstance(element_of(value), mlir.IntegerType | mlir.ComplexType):
        raise PlanError(
            f"micro_batches={count}: a result of type {value.type} is made of every micro-batch by"
            " itself, as per_micro_batch says, and has no mean. Leave it out of the results, or"
            " its line out of per_micro_batch.",
            place(why),
        )

    def divide(total: mlir.Value, ip: mlir.InsertionPoint) -> mlir.Value:
        divisor = constant(value.type, f"{count}.0", ip, why).results[0]
        return _op("divide", value.type, ip, why, total, divisor)

    return Leaving(value, value.type, lambda total, ip: _add(total, value, ip), divide)


def the_last(value: mlir.Value) -> Leaving:
    """All micro-batches compute the same."""
    return Leaving(value, value.type, lambda before, ip: value, _as_it_is)


def a_stack(value: mlir.Value, part: Part, number: mlir.Value, parts: Parts) -> Leaving:
    """Slices are put where they belong."""
    why, element, small = maker_of(value).location, element_of(value), shape_of(value)
    whole = [*small[: part.dim], small[part.dim] * part.count, *small[part.dim + 1 :]]
    unfolded = mlir.RankedTensorType.get(part.unfolded(whole, part.count), element)
    one = mlir.RankedTensorType.get(part.unfolded(whole, 1), element)

    def write(stack: mlir.Value, ip: mlir.InsertionPoint) -> mlir.Value:
        update = reshape(value, one, ip, why).results[0]
        starts = parts.starts(len(unfolded.shape), part, number, ip, why)
        return _op("dynamic_update_slice", unfolded, ip, why, stack, update, *starts)

    def fold(stack: mlir.Value, ip: mlir.InsertionPoint) -> mlir.Value:
        return reshape(stack, mlir.RankedTensorType.get(whole, element), ip, why).results[0]

    return Leaving(value, unfolded, write, fold)


def count_once(op: mlir.Operation, operand: int, number: mlir.Value) -> mlir.Operation:
    """Let an operand be zeros in all micro-batches but the first one.

    Returns:
        The op between them; its operand 1 is what the operand was.
    """
    value, where, why = op.operands[operand], mlir.InsertionPoint(op), op.location
    truth = mlir.RankedTensorType.get([], mlir.IntegerType.get_signless(1))
    zero = constant(number.type, "0", where, why).results[0]
    is_first = mlir.Operation.create(
        "stablehlo.compare",
        results=[truth],
        operands=[number, zero],
        attributes={
            "comparison_direction": mlir.Attribute.parse("#stablehlo<comparison_direction EQ>")
        },
        loc=why,
        ip=where,
    ).results[0]
    nothing = zeros(value.type, where, why).results[0]
    op.operands[operand] = _op("select", value.type, where, why, is_first, value, nothing)
    return maker_of(op.operands[operand])


def scaled(op: mlir.Operation, count: int) -> mlir.Value:
    """What an op that adds up over a micro-batch would be of ``count`` alike, for all readers."""
    result, why = op.results[0], op.location
    block = list(op.block.operations)
    where = mlir.InsertionPoint(block[[other.operation for other in block].index(op) + 1])
    text = str(count) if isinstance(element_of(result), mlir.IntegerType) else f"{count}.0"
    factor = constant(result.type, text, where, why).results[0]
    product = _op("multiply", result.type, where, why, factor, factor)
    result.replace_all_uses_with(product)
    maker_of(product).operands[0] = result
    return product


def maker_of(value: mlir.Value) -> mlir.Operation:
    """The op whose result ``value`` is."""
    return mlir.OpResult(value).owner.operation


def _add(total: mlir.Value, value: mlir.Value, where: mlir.InsertionPoint) -> mlir.Value:
    return _op("add", value.type, where, maker_of(value).location, total, value)


def _as_it_is(value: mlir.Value, where: mlir.InsertionPoint) -> mlir.Value:
    return value


def _op(
    name: str,
    type_: mlir.Type,
    where: mlir.InsertionPoint,
    why: mlir.Location,
    *operands: mlir.Value,
) -> mlir.Value:
    return mlir.Operation.create(
        f"stablehlo.{name}", results=[type_], operands=operands, loc=why, ip=where
    ).results[0]
