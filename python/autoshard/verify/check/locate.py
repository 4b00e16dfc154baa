"""Which op of a program is the first that is computed wrongly.

More and more values are made results of the program, and compared: all of a small program at once,
so many of a large one, then those between the last right ones and the first wrong one. Loops and
branches that are wrong are opened: one trip, one branch in place of the op.

What differs may be nothing but rounding: a difference of equal numbers, or an op that jumps. Such
ops are judged by themselves, with operands that are drawn, and what follows on them with a drawn
number in place of what they give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from autoshard.ir import mlir, new_context, parse_bytes, print_module
from autoshard.ir.locations import place
from autoshard.planned.module import Kind, PlannedModule, PlannedOp, read_plan
from autoshard.verify.check.compare import DOUBLE, Difference
from autoshard.verify.check.part import entry_of, keep_part, read_values
from autoshard.verify.check.run import Failure, Outcome

Run = Callable[[bytes], Outcome | Failure]

_SHOWN = 1000
"""Ops whose results are looked at in one run."""

_ROUNDS = 4

_AMPLIFIED = 1e-6
"""Part of the largest element that rounding in double precision may grow to behind many ops."""

_SUMS = frozenset({"stablehlo.add", "stablehlo.subtract"})
_PRODUCTS = frozenset({"stablehlo.dot_general", "stablehlo.convolution"})
_REDUCTIONS = frozenset({"stablehlo.reduce", "stablehlo.reduce_window", "stablehlo.scatter"})

_STEPS = frozenset(
    {
        *(
            f"stablehlo.{name}"
            for name in (
                *("compare", "convert", "ceil", "floor", "round_nearest_afz", "reduce", "sign"),
                *("round_nearest_even", "remainder", "select_and_scatter", "sort", "is_finite"),
            )
        ),
        "chlo.top_k",
    }
)
"""Ops whose result may jump where an operand differs by rounding."""


@dataclass(frozen=True, slots=True)
class WrongOp:
    """The first op that is computed otherwise when it is split."""

    op: str
    """``stablehlo.convolution``."""
    location: str | None
    """``file:line:col`` of the user's code."""
    operands: tuple[str, ...]
    """Type and sharding of each, in the small program."""
    results: tuple[str, ...]
    different: int
    """Elements of its result that differ."""
    elements: int
    relative_error: float
    is_certain: bool
    """False: it is only the op of the first result that differs. With the values before it made
    results too, nothing differs, or there was no time to look."""
    is_inside: bool = False
    """It stands in a loop or branch."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """One run in which values of many ops were compared."""

    plan: PlannedModule
    ops: Sequence[PlannedOp]
    of_op: Mapping[int, Difference]
    """The worst of the results, by number of the op."""


def locate(planned: bytes, outcome: Outcome, run: Run) -> WrongOp | None:
    """The first op that is wrong.

    Args:
        planned: The small program.
        outcome: Of a run in which results differ.
        run: Runs a program of which the context is not current.

    Returns:
        None where all that differs is rounding: no op is wrong where its operands are drawn, or
        where they are compared, too.
    """
    seen = _seen(planned, outcome)
    wrong = [number for number, found in seen.of_op.items() if not found.is_same]
    first = min(wrong)
    fallback = _wrong_op(seen, first, is_certain=False)
    kept = sorted(_sources(seen.ops, wrong))
    candidates = [
        n for n in kept if seen.ops[n].kind is Kind.COMPUTE and len(seen.ops[n].op.results)
    ]
    for _ in range(_ROUNDS):
        shown = {*_spread(candidates), *wrong}
        part = _part(planned, kept, shown)
        found = run(part)
        if isinstance(found, Failure):
            return fallback
        now = _seen(part, found)
        judged = _judged(now)
        number = judged.wrong
        if number is None:
            if judged.rounding:
                return _behind_rounding(part, now, judged, run)
            return None if _is_amplified(outcome) else fallback
        # numbers of the part are places in ``kept``
        unseen = [
            place_
            for place_ in sorted(_sources(now.ops, [number], stop=now.of_op))
            if place_ != number and place_ not in now.of_op and now.ops[place_].kind is Kind.COMPUTE
        ]
        if not unseen:
            return _opened(part, now, number, run) or _wrong_op(now, number, is_certain=True)
        candidates = [kept[place_] for place_ in unseen]
        wrong = [kept[number]]
        fallback = _wrong_op(now, number, is_certain=False)
    return fallback


def locate_failure(planned: bytes, run: Run) -> WrongOp | None:
    """The op without which, and all behind it, a program can be split; None: it is not found."""
    with new_context() as context:
        plan = read_plan(parse_bytes(planned, context, "module"))
        count = len(entry_of(plan).body.ops) - 1
    good, bad = 0, count
    while bad - good > 1:
        middle = (good + bad) // 2
        found = run(_part(planned, range(middle), None))
        if isinstance(found, Failure):
            if not found.is_of_plan:
                return None
            bad = middle
        else:
            good = middle
    nothing = _Seen(plan, entry_of(plan).body.ops, {})
    part = _part(planned, range(bad), None)
    return _opened(part, nothing, bad - 1, run) or _wrong_op(nothing, bad - 1, is_certain=True)


# Parts ------------------------------------------------------------------------------------------


def _part(planned: bytes, kept: Sequence[int], shown: set[int] | None) -> bytes:
    with new_context() as context:
        module = parse_bytes(planned, context, "module")
        keep_part(read_plan(module), set(kept), shown)
        return print_module(module, "bytecode")


def _seen(planned: bytes, outcome: Outcome) -> _Seen:
    with new_context() as context:
        plan = read_plan(parse_bytes(planned, context, "module"))
        *ops, last = entry_of(plan).body.ops
        makers = _makers(ops)
        of_op: dict[int, Difference] = {}
        for value, found in zip(last.op.operands, outcome.results, strict=True):
            number = makers.get(value)
            if number is not None and (number not in of_op or not found.is_same):
                of_op[number] = found
        return _Seen(plan, ops, of_op)


def _makers(ops: Sequence[PlannedOp]) -> dict[mlir.Value, int]:
    """The number of the op that gives each value."""
    found: dict[mlir.Value, int] = {}
    for number, planned in enumerate(ops):
        found.update((value, number) for value in planned.op.results)
    return found


def _sources(
    ops: Sequence[PlannedOp], numbers: Sequence[int], stop: Mapping[int, Difference] | None = None
) -> set[int]:
    """These ops and those whose results they depend on, up to what differs nowhere in ``stop``."""
    makers = _makers(ops)
    found = set(numbers)
    waiting = list(numbers)
    while waiting:
        for value in read_values(ops[waiting.pop()].op):
            maker = makers.get(value)
            if maker is None or maker in found:
                continue
            if stop is not None and maker in stop and stop[maker].is_same:
                continue
            found.add(maker)
            waiting.append(maker)
    return found


def _spread(numbers: Sequence[int]) -> list[int]:
    """The numbers that are shown: at most ``_SHOWN``, evenly taken."""
    step = max(1, -(-len(numbers) // _SHOWN))
    return list(numbers[::step])


# Judging ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Judged:
    """What a run says of the ops of a program, by their numbers."""

    wrong: int | None
    """The first that is wrong by more than rounding, of operands that are not known wrong."""
    rounding: frozenset[int]
    """Where something that may be rounding begins, before that."""
    behind: frozenset[int]
    """Those that read what may be rounding: nothing is known of them."""


def _judged(seen: _Seen) -> _Judged:
    makers = _makers(seen.ops)
    rounding: set[int] = set()
    behind: set[int] = set()
    unknown: set[int] = set()
    wrong = None
    for number, planned in enumerate(seen.ops):
        found = seen.of_op.get(number)
        sources = {makers[value] for value in read_values(planned.op) if value in makers}
        if not sources.isdisjoint(unknown):
            if found is None or not found.is_same:
                behind.add(number)
                unknown.add(number)
        elif found is not None and not found.is_same:
            if not _is_rounding(planned.op, found, seen, makers):
                wrong = number
                break
            rounding.add(number)
            unknown.add(number)
    return _Judged(wrong, frozenset(rounding), frozenset(behind))


def _is_rounding(
    op: mlir.Operation, found: Difference, seen: _Seen, makers: Mapping[mlir.Value, int]
) -> bool:
    """Whether a difference is one of the terms of which a result is what is left."""
    of_operands = [seen.of_op.get(makers.get(value, -1)) for value in op.operands]
    if op.name in _STEPS and any(each is not None and each.error > 0 for each in of_operands):
        return True
    largest = [1.0 if each is None else each.largest for each in of_operands]
    scale = found.largest
    if op.name in _SUMS:
        scale = sum(largest)
    elif op.name in _PRODUCTS:
        scale = largest[0] * largest[1] * _elements(op.operands[1])
    elif op.name in _REDUCTIONS:
        scale = max(largest) * _elements(op.operands[0])
    return found.error <= DOUBLE.of_largest * scale


def _is_amplified(outcome: Outcome) -> bool:
    """Whether results differ by so little that ops which are right by themselves may do that."""
    wrong = [found for found in outcome.results if not found.is_same]
    return all(found.relative_error <= _AMPLIFIED for found in wrong)


def _elements(value: mlir.Value) -> int:
    return prod(mlir.RankedTensorType(value.type).shape)


def _behind_rounding(planned: bytes, seen: _Seen, judged: _Judged, run: Run) -> WrongOp | None:
    """The wrong op among those that may only round, by themselves, and among those behind them.

    Operands that ops left out have made are drawn, so that nothing is left of what was rounded.
    """
    fallback = _wrong_op(seen, min(judged.rounding), is_certain=False)
    for numbers in (judged.rounding, judged.behind):
        if not numbers:
            continue
        kept = sorted(_with_constants(seen.ops, numbers))
        part = _part(planned, kept, set(numbers))
        found = run(part)
        if isinstance(found, Failure):
            return fallback
        if all(each.is_same for each in found.results):
            continue
        now = _seen(part, found)
        if numbers is judged.behind:
            again = _judged(now)
            if again.wrong is None:
                return _behind_rounding(part, now, again, run)
            number = again.wrong
        else:
            number = min(number for number, each in now.of_op.items() if not each.is_same)
        return _opened(part, now, number, run) or _wrong_op(now, number, is_certain=True)
    return None


def _with_constants(ops: Sequence[PlannedOp], numbers: Iterable[int]) -> set[int]:
    """These ops and the constants that they read."""
    makers = _makers(ops)
    found = set(numbers)
    waiting = list(found)
    while waiting:
        for value in read_values(ops[waiting.pop()].op):
            maker = makers.get(value)
            if maker is not None and ops[maker].kind is Kind.RECOMPUTED and maker not in found:
                found.add(maker)
                waiting.append(maker)
    return found


# Loops and branches -----------------------------------------------------------------------------


def _opened(planned: bytes, seen: _Seen, number: int, run: Run) -> WrongOp | None:
    """The op inside a loop or branch that is wrong, where it is wrong by itself."""
    op = seen.ops[number].op
    if op.name not in ("stablehlo.while", "stablehlo.case", "stablehlo.if"):
        return None
    regions = [1] if op.name == "stablehlo.while" else range(len(op.regions))
    for region in regions:
        part = _inlined(planned, number, region)
        found = run(part)
        inside = None
        if isinstance(found, Failure):
            inside = locate_failure(part, run) if found.is_of_plan else None
        elif not all(each.is_same for each in found.results):
            inside = locate(part, found, run)
        if inside is not None:
            return replace(inside, is_inside=True)
    return None


def _inlined(planned: bytes, number: int, region: int) -> bytes:
    """The program with one region of an op in place of the op, and only what it depends on."""
    with new_context() as context, mlir.Location.unknown():
        module = parse_bytes(planned, context, "module")
        ops = entry_of(read_plan(module)).body.ops
        op = ops[number].op
        (block,) = op.regions[region].blocks
        for argument, operand in zip(block.arguments, op.operands, strict=False):
            argument.replace_all_uses_with(operand)
        *inner, last = [each.operation for each in block.operations]
        count = len(inner)
        for each in inner:
            each.move_before(op)
        for result, value in zip(op.results, last.operands, strict=True):
            result.replace_all_uses_with(value)
        last.erase()
        op.erase()
        module = parse_bytes(print_module(module, "bytecode"), context, "module")
        plan = read_plan(module)
        ops = entry_of(plan).body.ops[:-1]
        opened = [n for n in range(number, number + count) if len(ops[n].op.results)]
        keep_part(plan, _sources(ops, opened))
        return print_module(module, "bytecode")


# What is said -----------------------------------------------------------------------------------


def _wrong_op(seen: _Seen, number: int, *, is_certain: bool) -> WrongOp:
    planned = seen.ops[number]
    found = seen.of_op.get(number)
    sides = (planned.op.operands, planned.operands), (planned.op.results, planned.results)
    operands, results = (
        tuple(
            f"{value.type}" if at is None else f"{value.type} {at.sharding}"
            for value, at in zip(values, places, strict=False)
        )
        for values, places in sides
    )
    return WrongOp(
        op=planned.op.name,
        location=place(planned.op.location),
        operands=operands,
        results=results,
        different=0 if found is None else found.different,
        elements=0 if found is None else found.elements,
        relative_error=0.0 if found is None else found.relative_error,
        is_certain=is_certain,
    )
