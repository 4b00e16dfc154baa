"""Which arguments of tasks give their memory to results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoshard.rewrites.stage_tasks.program import Call, StageProgram, Transfer

Donated = Mapping[int, int | None]
"""Arguments of ``main`` that the user donates, with the result that replaces each, if one does."""
Donations = Mapping[str, Mapping[int, int]]
"""By task: which argument gives its memory to which result."""


def donations_of(program: StageProgram, donated: Donated) -> Donations:
    """Which arguments of tasks give their memory to results.

    Sums, where one task reads what it adds to and nothing else reads it, and donated arguments
    that the task which makes their successor reads last.

    Args:
        program: Its tasks.
        donated: Arguments of ``main``, with the result that replaces each.
    """
    found: dict[str, dict[int, int]] = {}
    read = Counter(_operands(program))
    read.update(one.start for one in program.carried)
    read.update(program.results)
    updates = Counter(one.update for one in program.carried)
    makers = {value: call for call in program.calls for value in call.results}
    for one in program.sums:
        is_own = read[one.argument] == 1 and read[one.update] == 0 and updates[one.update] == 1
        is_own = is_own and read[one.start] == 1
        call = makers.get(one.update) if is_own else None
        if call is not None and one.argument in call.operands:
            place = call.operands.index(one.argument)
            found.setdefault(call.task.name, {})[place] = call.results.index(one.update)
    leaving = set(program.results)
    last = {value: step for step in program.after for value in _read(step)}
    calls = [step for step in program.after if isinstance(step, Call)]
    places = {call.task.name: _Places.of(call) for call in calls}
    for argument, result in donated.items():
        value = program.arguments[argument]
        if result is None or value in leaving:
            continue
        step, made = last.get(value), program.results[result]
        if isinstance(step, Call):
            own = places[step.task.name]
            taken, given = own.operands.get(value, ()), own.results.get(made)
            if len(taken) == 1 and given is not None:
                found.setdefault(step.task.name, {})[taken[0]] = given
    return found


@dataclass(frozen=True, slots=True)
class _Places:
    """Where a call has its values: a task of an update takes and gives thousands of them."""

    operands: Mapping[int, Sequence[int]]
    results: Mapping[int, int]
    """The first place of each."""

    @staticmethod
    def of(call: Call) -> _Places:
        operands: dict[int, list[int]] = {}
        for place, value in enumerate(call.operands):
            operands.setdefault(value, []).append(place)
        last_first = reversed(list(enumerate(call.results)))
        return _Places(operands, {value: place for place, value in last_first})


def _operands(program: StageProgram) -> list[int]:
    return [value for step in program.steps for value in _read(step)]


def _read(step: Call | Transfer) -> tuple[int, ...]:
    return step.operands if isinstance(step, Call) else (step.operand,)
