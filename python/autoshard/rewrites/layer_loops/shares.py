"""Into how many parts loops over layers are cut, and on which stages these are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoshard import _core
from autoshard.importer.stage_ops import does_much
from autoshard.ir import mlir
from autoshard.rewrites.layer_loops.parts import RowParts
from autoshard.rewrites.layer_loops.rows import RowValues
from autoshard.rewrites.stage_tasks.tasks import outer_uses

_BACK = 2.0
"""How many times as long as forwards gradients take: two products for each."""


@dataclass(frozen=True, slots=True)
class Share:
    """A group of loops, or ops between them, on the way forward."""

    seconds: float
    """With its gradients."""
    group: int | None
    """The number of a group of loops; None: other ops."""
    trips: int = 1


def shares_of(values: RowValues, seconds: Sequence[float], groups: Sequence[int]) -> list[Share]:
    """What a step does one after the other on its way forward.

    Args:
        values: Of the block.
        seconds: Of each of its ops.
        groups: Those of which each may be cut.
    """
    loops = {group: values.loops_of(group) for group in groups}
    inside = {number for numbers in loops.values() for number in numbers}
    heavy = [
        0.0 if number in inside or not does_much(op) else seconds[number]
        for number, op in enumerate(values.ops)
    ]
    found: list[Share] = []
    seen: set[int] = set()
    for group, numbers in sorted(loops.items(), key=lambda item: item[1][0]):
        before = ancestors(values.ops, numbers[0]) - seen
        seen |= before
        ahead = sum(heavy[number] for number in before)
        found.append(Share((1 + _BACK) * ahead, None))
        trips = values.loops[numbers[0]].trips
        found.append(Share(sum(seconds[number] for number in numbers), group, trips))
    ahead = sum(share.seconds for share in found if share.group is None)
    found.append(Share(max(sum(heavy) - ahead, 0.0), None))
    return found


def parts_of_groups(
    values: RowValues, shares: Sequence[Share], stages: int, chunks: int, slack: float
) -> Mapping[int, RowParts]:
    """The parts of each group of loops that is cut.

    No stage has more parts of the same rows than another one.
    """
    parts = stages * chunks
    counts = [n for n in range(1, parts + 1) if n <= stages or n % stages == 0]
    divisors = [
        [n for n in counts if share.trips % n == 0] if share.group is not None else []
        for share in shares
    ]
    found = _core.loop_shares(
        [share.seconds for share in shares], divisors, stages=parts, slack=slack
    )
    cut: dict[int, RowParts] = {}
    groups = [share.group for share in shares if share.group is not None]
    for group, at in zip(groups, found or (), strict=False):
        if at.parts == 1:
            continue
        on = tuple(range(at.first_stage, at.first_stage + at.parts))
        first = values.loops_of(group)[0]
        cut[group] = RowParts(on[::-1] if values.loops[first].is_downwards else on, stages)
    return cut


def ancestors(ops: Sequence[mlir.Operation], number: int) -> set[int]:
    """Numbers of the ops that an op is made of."""
    makers = {value: n for n, op in enumerate(ops[:number]) for value in op.results}
    waiting, found = [number], set[int]()
    while waiting:
        op = ops[waiting.pop()]
        for user, operand in outer_uses(op):
            maker = makers.get(user.operands[operand])
            if maker is not None and maker not in found:
                found.add(maker)
                waiting.append(maker)
    return found
