"""Loops of the program that read the number of the micro-batch carry it along."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autoshard.ir import mlir


def number_in_loops(
    operations: list[mlir.Operation], loops: Sequence[int], number: mlir.Value
) -> Callable[[mlir.Operation], mlir.Value]:
    """Write loops anew, with one more carried value, from the outside in.

    Args:
        operations: Of the module; loops and their returns are replaced in it.
        loops: Numbers of the loops, outer ones first. Those around one are there, too.
        number: Of the micro-batch, outside of all of them.

    Returns:
        The number as an op reads it.
    """
    bodies: dict[mlir.Block, mlir.Value] = {}

    def known_to(op: mlir.Operation) -> mlir.Value:
        block = op.operation.block
        while block not in bodies:
            owner = block.owner.operation
            if owner.name == "func.func":
                return number
            block = owner.block
        return bodies[block]

    for loop_number in loops:
        loop = operations[loop_number]
        outer = known_to(loop)
        made, returned = _with_value(loop, outer)
        for region in made.regions:
            block = region.blocks[0]
            bodies[block] = block.arguments[len(block.arguments) - 1]
        operations[loop_number] = made
        _replace(operations, loop_number, returned)
    return known_to


def _with_value(
    loop: mlir.Operation, value: mlir.Value
) -> tuple[mlir.Operation, tuple[mlir.Operation, mlir.Operation]]:
    """A loop that also carries ``value``, and the return of its body before and now."""
    operands = [*loop.operands, value]
    types = [operand.type for operand in operands]
    attributes = {
        loop.attributes[index].name: loop.attributes[index].attr
        for index in range(len(loop.attributes))
    }
    made = mlir.Operation.create(
        "stablehlo.while",
        results=types,
        operands=operands,
        attributes=attributes,
        regions=2,
        loc=loop.location,
        ip=mlir.InsertionPoint(loop),
    )
    for old_region, new_region in zip(loop.regions, made.regions, strict=True):
        old_region.blocks[0].append_to(new_region)
        new_region.blocks[0].add_argument(value.type, loop.location)
    block = made.regions[1].blocks[0]
    end = block.operations[len(block.operations) - 1].operation
    returned = mlir.Operation.create(
        "stablehlo.return",
        operands=[*end.operands, block.arguments[len(block.arguments) - 1]],
        loc=end.location,
        ip=mlir.InsertionPoint(end),
    )
    for old, new in zip(loop.results, made.results, strict=False):
        old.replace_all_uses_with(new)
    loop.erase()
    return made, (end, returned)


def _replace(
    operations: list[mlir.Operation],
    first: int,
    returned: tuple[mlir.Operation, mlir.Operation],
) -> None:
    """The new return at the number of the old one, which is erased."""
    old, new = returned
    number = next(n for n in range(first, len(operations)) if operations[n] == old)
    operations[number] = new
    old.erase()
