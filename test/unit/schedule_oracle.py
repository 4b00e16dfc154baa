"""The best schedule of all, by trying every order, and what any schedule has to keep."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

from autoshard.schedule.list_scheduler import Limits, Schedule
from autoshard.schedule.work import Work, longest_behind


@dataclass(frozen=True)
class _State:
    ends: tuple[tuple[Any, ...], ...]
    free: tuple[Any, ...]
    ahead: tuple[int, ...]
    kept: tuple[int, ...]


def best_seconds(
    works: tuple[Work, ...], micro_batches: int, limits: Limits, transfer_seconds: Any = 0
) -> Any:
    """Seconds of the best schedule: orders of works on stages, by branch and bound.

    Some best schedule is active: nothing can be started earlier without something else becoming
    later. So the stage whose next work ends first takes one of those that start before that end.
    """
    stages = 1 + max(work.stage for work in works)
    tails = longest_behind(works, transfer_seconds)
    best: Any = float("inf")
    seen: dict[tuple[int, ...], list[tuple[Any, ...]]] = {}

    def start(state: _State, number: int) -> Any:
        work, done = works[number], len(state.ends[number])
        kept = _exceeds(limits.kept, state.kept, work.stage, work.kept)
        ahead = _exceeds(limits.ahead, state.ahead, work.stage, work.ahead)
        if done == micro_batches or kept or ahead:
            return None
        at = state.free[work.stage]
        for it, moved in work.after_seconds(works, transfer_seconds):
            if len(state.ends[it]) <= done:
                return None
            at = max(at, state.ends[it][done] + moved)
        return at

    def is_hopeless(state: _State) -> bool:
        left = [[n for n in range(len(works)) if len(state.ends[n]) < micro_batches]]
        for stage in range(stages):
            own = [n for n in left[0] if works[n].stage == stage]
            rest = sum((micro_batches - len(state.ends[n])) * works[n].seconds for n in own)
            if own and state.free[stage] + rest + min(tails[n] for n in own) >= best:
                return True
        key = tuple(map(len, state.ends))
        times = (*state.free, *(end for ends in state.ends for end in ends))
        if any(all(a <= b for a, b in zip(old, times, strict=True)) for old in seen.get(key, ())):
            return True
        seen.setdefault(key, []).append(times)
        return False

    def visit(state: _State) -> None:
        nonlocal best
        if all(len(ends) == micro_batches for ends in state.ends):
            best = min(best, max(state.free))
        elif not is_hopeless(state):
            options = [(at, n) for n in range(len(works)) if (at := start(state, n)) is not None]
            if not options:
                return
            end, first = min((at + works[n].seconds, n) for at, n in options)
            for at, number in sorted(options):
                same_stage = works[number].stage == works[first].stage
                if number == first or (same_stage and at < end):
                    visit(_done(state, works[number], number, at + works[number].seconds))

    zeros = (0,) * stages
    visit(_State(((),) * len(works), zeros, zeros, zeros))
    return best


def _exceeds(limit: tuple[int, ...] | None, now: tuple[int, ...], stage: int, more: int) -> bool:
    return limit is not None and more > 0 and now[stage] + more > limit[stage]


def _done(state: _State, work: Work, number: int, end: Any) -> _State:
    def changed(values: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
        return (*values[:place], value, *values[place + 1 :])

    stage = work.stage
    return replace(
        state,
        ends=changed(state.ends, number, (*state.ends[number], end)),
        free=changed(state.free, stage, end),
        ahead=changed(state.ahead, stage, state.ahead[stage] + work.ahead),
        kept=changed(state.kept, stage, state.kept[stage] + work.kept),
    )


def check_schedule(schedule: Schedule, limits: Limits, transfer_seconds: Any = 0) -> None:
    """Everything once, one at a time on a stage, behind what it reads, within the limits."""
    works, runs = schedule.works, schedule.runs
    ends = {(run.work, run.micro_batch): run.end for run in runs}
    assert len(ends) == len(runs) == len(works) * schedule.micro_batches
    for stage in range(schedule.stages):
        own = [run for run in runs if works[run.work].stage == stage]
        assert all(a.end <= b.start for a, b in itertools.pairwise(own))
        for limit, kind in ((limits.ahead, "ahead"), (limits.kept, "kept")):
            now = 0
            for run in own:
                now += getattr(works[run.work], kind)
                assert limit is None or now <= limit[stage]
    for run in runs:
        work = works[run.work]
        assert run.end == run.start + work.seconds
        for it, moved in work.after_seconds(works, transfer_seconds):
            assert ends[it, run.micro_batch] + moved <= run.start
