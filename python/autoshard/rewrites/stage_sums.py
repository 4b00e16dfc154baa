"""Sums to which several stages add: each adds up its own in the loop, and they meet behind it.

before  in the loop   %g = stablehlo.add %of_stage_0, %of_stage_3
                      %new = stablehlo.add %sum, %g
after   in the loop   %new = stablehlo.add %sum, %of_stage_0
                      %other = stablehlo.add %sum_of_stage_3, %of_stage_3
        behind it     %whole = stablehlo.add %new, %other

So the gradient of a weight that two stages share goes over once a step, not once a micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.ir import mlir
from autoshard.ir.attributes import LEVEL, STAGE, attribute_of
from autoshard.ir.constants import zeros


def split_sums(loop: mlir.Operation, sums: Sequence[mlir.Operation]) -> mlir.Operation:
    """Write a loop anew in which each stage adds up its own.

    Args:
        loop: Over micro-batches; its ops are labelled.
        sums: The ops of its body, without labels, that it carries on.

    Returns:
        The loop as it is now.
    """
    if not sums:
        return loop
    body = loop.regions[1].blocks[0]
    end = body.operations[len(body.operations) - 1].operation
    carried = list(end.operands)
    numbers = [carried.index(total.results[0]) for total in sums]
    added: list[tuple[int, _Labelled]] = []
    """For each new sum the one that it is a part of, and what a micro-batch adds."""
    for number, total in zip(numbers, sums, strict=True):
        argument = body.arguments[number]
        parts = _by_stage(_addends(total, argument), end)
        first = parts[0]
        own = _add(total, argument, first)
        total.results[0].replace_all_uses_with(own)
        _erase_tree(total)
        added += [(number, part) for part in parts[1:]]
    return _with_sums(loop, added)


_Labelled = tuple[mlir.Value, int, int]
"""A value with its stage and level."""


def _addends(op: mlir.Operation, argument: mlir.Value) -> list[_Labelled]:
    """What a tree of adds adds to ``argument``."""
    found: list[_Labelled] = []
    for value in op.operands:
        if value == argument:
            continue
        if isinstance(value, mlir.BlockArgument):
            found.append((value, 0, 0))
            continue
        maker = mlir.OpResult(value).owner.operation
        stage, level = (attribute_of(maker, name) for name in (STAGE, LEVEL))
        if stage is None or level is None:
            found += _addends(maker, argument)
            continue
        found.append((value, mlir.IntegerAttr(stage).value, mlir.IntegerAttr(level).value))
    return found


def _by_stage(addends: Sequence[_Labelled], end: mlir.Operation) -> list[_Labelled]:
    """The sum of each stage's addends, written before ``end``."""
    sums: dict[int, _Labelled] = {}
    for value, stage, level in addends:
        if stage not in sums:
            sums[stage] = (value, stage, level)
            continue
        other, _, other_level = sums[stage]
        latest = max(level, other_level)
        made = _labelled_add([other, value], stage, latest, mlir.InsertionPoint(end), end)
        sums[stage] = (made, stage, latest)
    return [sums[stage] for stage in sorted(sums)]


def _add(total: mlir.Operation, sum_: mlir.Value, part: _Labelled) -> mlir.Value:
    value, stage, level = part
    end = total.block.operations[len(total.block.operations) - 1].operation
    return _labelled_add([sum_, value], stage, level, mlir.InsertionPoint(end), total)


def _labelled_add(
    operands: Sequence[mlir.Value],
    stage: int,
    level: int,
    where: mlir.InsertionPoint,
    why: mlir.Operation,
) -> mlir.Value:
    made = mlir.Operation.create(
        "stablehlo.add",
        results=[operands[0].type],
        operands=operands,
        loc=why.location,
        ip=where,
    )
    label(made, stage, level)
    return made.results[0]


def label(op: mlir.Operation, stage: int, level: int) -> None:
    """Say where an op is made."""
    integer = mlir.IntegerType.get_signless(32)
    op.attributes[STAGE] = mlir.IntegerAttr.get(integer, stage)
    op.attributes[LEVEL] = mlir.IntegerAttr.get(integer, level)


def _erase_tree(op: mlir.Operation) -> None:
    """Erase the adds of a tree whose result nobody reads any more, each behind its readers."""
    tree = [op]
    for each in tree:
        for value in each.operands:
            if isinstance(value, mlir.BlockArgument):
                continue
            maker = mlir.OpResult(value).owner.operation
            if STAGE not in maker.attributes and maker not in tree:
                tree.append(maker)  # two adds, or one add twice, may read it
    while tree:
        unread = next(each for each in tree if not any(True for _ in each.results[0].uses))
        tree.remove(unread)
        unread.erase()


def _with_sums(loop: mlir.Operation, added: Sequence[tuple[int, _Labelled]]) -> mlir.Operation:
    """The loop, carrying more sums, each added behind it to the one that it is a part of."""
    where = mlir.InsertionPoint(loop)
    starts: list[mlir.Value] = []
    for _, (value, stage, _) in added:
        empty = zeros(value.type, where, loop.location)
        label(empty, stage, 0)
        starts.append(empty.results[0])
    operands = [*loop.operands, *starts]
    attributes = {
        loop.attributes[index].name: loop.attributes[index].attr
        for index in range(len(loop.attributes))
    }
    made = mlir.Operation.create(
        "stablehlo.while",
        results=[operand.type for operand in operands],
        operands=operands,
        attributes=attributes,
        regions=2,
        loc=loop.location,
        ip=where,
    )
    count = len(loop.results)
    for old, new in zip(loop.regions, made.regions, strict=True):
        old.blocks[0].append_to(new)
        for start in starts:
            new.blocks[0].add_argument(start.type, loop.location)
    body = made.regions[1].blocks[0]
    end = body.operations[len(body.operations) - 1].operation
    sums = [_add(end, body.arguments[count + index], part) for index, (_, part) in enumerate(added)]
    mlir.Operation.create(
        "stablehlo.return",
        operands=[*end.operands, *sums],
        loc=end.location,
        ip=mlir.InsertionPoint(end),
    )
    end.erase()
    whole = [made.results[index] for index in range(count)]
    for index, (number, _) in enumerate(added):
        home = _home(body, number)
        behind = mlir.InsertionPoint(loop)
        parts = [whole[number], made.results[count + index]]
        whole[number] = _labelled_add(parts, home, 1, behind, loop)
    for old, new in zip(loop.results, whole, strict=True):
        old.replace_all_uses_with(new)
    loop.erase()
    return made


def _home(body: mlir.Block, number: int) -> int:
    """The stage that makes what the body carries on."""
    end = body.operations[len(body.operations) - 1].operation
    maker = mlir.OpResult(end.operands[number]).owner.operation
    return mlir.IntegerAttr(maker.attributes[STAGE]).value
