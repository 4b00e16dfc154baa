"""Stacks of which a loop only converts rows to a narrower type are converted before it.

before  loop { %row = dynamic_slice %stack, %i  ..  %narrow = convert %row }
after   %all = convert %stack   loop { %narrow = dynamic_slice %all, %i }

Compilers do so themselves, in each program that has the loop: a task of a pipeline would convert
the weights of its layers in every micro-batch. Before the loop it is done once a step.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.ir import element_bits, mlir
from autoshard.rewrites.recomputation.loops import body_of, yielded_of

_VIEWS = ("stablehlo.dynamic_slice", "stablehlo.reshape")


def convert_stacks(ops: Sequence[mlir.Operation]) -> None:
    """Convert stacks before the loops that read them so. Expects the context of the ops.

    Args:
        ops: Of one block, in which calls are inlined.
    """
    converted: dict[tuple[mlir.Value, mlir.Type], mlir.Value] = {}
    for op in ops:
        if op.name == "stablehlo.while":
            for slot, argument in enumerate(body_of(op).arguments):
                if yielded_of(op)[slot] == argument:
                    _convert(op, slot, converted)


def _convert(
    loop: mlir.Operation, slot: int, converted: dict[tuple[mlir.Value, mlir.Type], mlir.Value]
) -> None:
    argument = body_of(loop).arguments[slot]
    found = _conversions(argument, body_of(loop))
    types = {_element(one.results[0]) for one in found or ()}
    if found is None or len(types) != 1 or _is_read(loop.regions[0].blocks[0].arguments[slot]):
        return
    (element,) = types
    stack = loop.operands[slot]
    whole = mlir.RankedTensorType(stack.type)
    if element_bits(element) >= element_bits(whole.element_type):
        return
    type_ = mlir.RankedTensorType.get(whole.shape, element)
    loop.results[slot].replace_all_uses_with(stack)
    if (stack, element) not in converted:
        op = mlir.Operation.create(
            "stablehlo.convert",
            results=[type_],
            operands=[stack],
            loc=found[0].location,
            ip=mlir.InsertionPoint(loop),
        )
        converted[stack, element] = op.results[0]
    loop.operands[slot] = converted[stack, element]
    loop.results[slot].set_type(type_)
    loop.regions[0].blocks[0].arguments[slot].set_type(type_)
    argument.set_type(type_)
    _narrow(argument, element)
    for one in found:
        one.results[0].replace_all_uses_with(one.operands[0])
        one.erase()


def _conversions(value: mlir.Value, body: mlir.Block) -> list[mlir.Operation] | None:
    """The conversions of rows of a stack; None: something else reads it."""
    found: list[mlir.Operation] = []
    for use in value.uses:
        user = use.owner.operation
        handed_on = _handed_on(use)
        if user.name == "stablehlo.convert":
            found.append(user)
        elif handed_on is not None and user.block == body:
            below = _conversions(handed_on, body)
            if below is None:
                return None
            found += below
        elif user.name != "stablehlo.return" or user.block != body:
            return None
    return found


def _narrow(value: mlir.Value, element: mlir.Type) -> None:
    """Rows of a stack get its type of elements."""
    for use in value.uses:
        result = _handed_on(use)
        if result is not None:
            shape = mlir.RankedTensorType(result.type).shape
            result.set_type(mlir.RankedTensorType.get(shape, element))
            _narrow(result, element)


def _handed_on(use: mlir.OpOperand) -> mlir.Value | None:
    """What an op makes that only takes a row of a value, or hands it on; None: it does more."""
    user, place = use.owner.operation, use.operand_number
    if user.name == "stablehlo.optimization_barrier":  # of jax.checkpoint
        return user.results[place]
    return user.results[0] if user.name in _VIEWS and place == 0 else None


def _element(value: mlir.Value) -> mlir.Type:
    return mlir.RankedTensorType(value.type).element_type


def _is_read(value: mlir.Value) -> bool:
    return any(True for _ in value.uses)
