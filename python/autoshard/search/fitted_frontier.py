"""Plans that no other beats in both step and peak, with what is computed again or waits on the
host.

Memory is lowered in steps. Within each step's bytes the plans of the search compete, each as it is
or with values let go: those that could be fastest by what is known of them are looked at first, by
estimates, then rewritten, until nothing that is left can be faster than what was written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from autoshard.errors import DoesNotFitError
from autoshard.ir import new_context, parse_bytes, print_module
from autoshard.passes.memory_limit import MEMORY_MARGIN
from autoshard.passes.recompute import FittedPlans, Recompute, Recomputed, rules_of
from autoshard.passes.recursive_programming import PlannedProgram, ReadProgram
from autoshard.planned.summary import PlanSummary
from autoshard.rewrites.recomputation.choice import Choice
from autoshard.rewrites.recomputation.question import Rules
from autoshard.search.automatic import ALL_MEMORY, Job, Planned
from autoshard.search.host_arguments import MORE_ARGUMENTS, count_that_frees
from autoshard.search.host_candidates import Candidate

MOST_LEVELS = 12
"""Limits of memory within which plans are looked for."""

_LEVEL = 0.8
"""Each of them is this part of the one before, down to what no plan keeps within."""

_LESS = 0.8
"""The search is asked for a plan within this part of the last one's peak."""

_LEAST = 0.95
"""Where nothing keeps within that, the plan of least memory is one as well if it is within this."""

_MOST_WRITTEN = 3
"""Plans that are written within one limit: estimates of some may be far off."""

_WORTH = 0.99
"""What may be faster is looked at if its step is at most this part of the best one's."""

_ABOUT = 1.02
"""A written plan of so many times the bytes that were wanted counts as one within them."""

_LEAST_SAVING = 1e-3
"""A slower plan saves at least this part of the memory."""

_LEAST_BETWEEN = 0.03
"""Limits closer than this part are one."""


@dataclass(frozen=True, slots=True)
class FrontierPlan:
    """One plan, as bytes: a dozen modules of some 50,000 ops are too much to hold."""

    bytecode: bytes = field(repr=False)
    summary: PlanSummary

    @property
    def step_seconds(self) -> float:
        """Seconds of one step."""
        return self.summary.step_seconds

    @property
    def peak_bytes(self) -> float:
        """On one device."""
        return self.summary.peak_bytes_per_device

    def planned(self, name: str) -> Planned:
        """Its module, read again."""
        return Planned(parse_bytes(self.bytecode, new_context(), name), self.summary)


class _Program:
    """A program with some arguments on the host, and what the search makes of it."""

    def __init__(self, job: Job, on_host: Sequence[int]) -> None:
        self.job = job
        self.read: ReadProgram = job.read_flat(on_host)
        self.step_seconds = 0.0
        """Nothing that is still to be searched is faster."""
        self.peak_bytes = math.inf
        """What the last plan needs of a device."""
        self.is_left = True
        """Could the search find one that needs less?"""
        self.error: DoesNotFitError | None = None

    def next(self) -> PlannedProgram | None:
        """The fastest plan that needs less than the last one; None if there is none."""
        limit = _LESS * self.peak_bytes
        try:
            found = self._searched(str(limit) if math.isfinite(limit) else ALL_MEMORY)
        except DoesNotFitError as error:
            self.is_left, self.error = False, error
            if not (limit < error.peak_bytes <= _LEAST * self.peak_bytes):
                return None
            # values of the plan of least memory may be let go as well
            try:
                found = self._searched(str(_ABOUT * error.peak_bytes))
            except DoesNotFitError:
                return None
        self.step_seconds = max(self.step_seconds, found.summary.step_seconds)
        self.peak_bytes = found.summary.peak_bytes_per_device
        return found

    def _searched(self, memory_limit: str) -> PlannedProgram:
        return self.job.searched(self.read, replace(self.job.options, memory_limit=memory_limit))


class _Base:
    """A plan of the search, as it is and with values let go."""

    def __init__(self, program: _Program, found: PlannedProgram, recomputing: Recompute) -> None:
        self.program = program
        self._job, self._found, self._recomputing = program.job, found, recomputing
        summary = found.summary if program.job.spreading is None else self.plan.summary
        self.step_seconds = summary.step_seconds
        self.peak_bytes = summary.peak_bytes_per_device
        rules = rules_of(recomputing)
        self.ways = [_Way(self, rules)]
        if rules.again and rules.host:
            self.ways.append(_Way(self, replace(rules, host=False), self.ways[0]))

    @cached_property
    def plan(self) -> FrontierPlan:
        """With nothing let go."""
        return _stored(self._job, self._written().within(float(ALL_MEMORY)), math.inf)

    @cached_property
    def fits(self) -> FittedPlans:
        """To let values go."""
        fits = self._written()
        _ = fits.copies  # read before another plan is written to the module
        return fits

    def forget(self) -> None:
        """What was read to let values go; it is read again where that is asked."""
        self.__dict__.pop("fits", None)

    def _written(self) -> FittedPlans:
        return self._job.fitted_plans(self._found, self._recomputing)


class _Way:
    """A plan of the search, and what may become of its values."""

    def __init__(self, base: _Base, rules: Rules, allows_more: _Way | None = None) -> None:
        self.base, self.rules = base, rules
        self._allows_more = allows_more
        self._estimates: dict[float, float] = {}
        """Limit -> seconds of a step, infinite where nothing fits."""
        self._bytes: dict[float, float] = {}
        self._reached = math.inf
        """The least bytes that it was written with."""
        self._has_failed = False
        """Was it written for a limit that is out of reach?"""
        self._choices: dict[float, Choice] = {}

    def is_estimated(self, limit: float) -> bool:
        """Has it been decided what becomes of values?"""
        return limit in self._estimates

    def least_seconds(self, limit: float) -> float:
        """What a step takes within a limit, or more: within more bytes it is no slower."""
        if self._has_failed and limit < self._reached:
            return math.inf
        least = self.base.step_seconds
        if self._allows_more is not None:
            least = self._allows_more.least_seconds(limit)
        if limit in self._estimates and not self._is_refuted(limit):
            return self._estimates[limit]
        known = [
            seconds
            for more, seconds in self._estimates.items()
            if more >= limit and not self._is_refuted(more)
        ]
        return max([least, *known])

    def _is_refuted(self, limit: float) -> bool:
        """Was more of it written than can be by its estimate?"""
        return math.isinf(self._estimates[limit]) and self._reached <= limit

    def estimate(self, limit: float) -> None:
        """Decide what becomes of values."""
        choice = self.base.fits.choice(limit, self.rules)
        self._choices[limit] = choice
        self._bytes[limit] = self.base.fits.estimated_bytes(choice)
        self._estimates[limit] = self.base.fits.estimated_seconds(choice)

    def least_bytes(self, limit: float) -> float:
        """What it needs at least, by an estimate."""
        if limit not in self._bytes:
            self.estimate(limit)
        return self._bytes[limit]

    def written(self, limit: float) -> Recomputed:
        """Rewrite it as decided; that is forgotten then."""
        if limit not in self._choices:
            self.estimate(limit)
        made = self.base.fits.written(self._choices.pop(limit), limit, self.rules)
        peak = made.summary.peak_bytes_per_device
        self._reached = min(self._reached, peak)
        self._has_failed |= peak > _ABOUT * limit and math.isinf(self._estimates[limit])
        return made

    def forget(self) -> None:
        """What has been decided, but not what it was estimated to do."""
        self._choices.clear()


class FrontierSearch:
    """All that was planned and read for the frontier of one job."""

    def __init__(self, job: Job, waiting: Callable[[], list[Candidate]] | None) -> None:
        """Nothing is planned yet.

        Args:
            job: What is planned; it may let values go.
            waiting: Which arguments may live on the host; None: none but those that are marked.
        """
        assert job.recomputing is not None
        self.job, self._recomputing = job, job.recomputing
        self._waiting_of = waiting
        self._waiting: list[Candidate] | None = None
        self._on_host = 0
        """So many of them do in the last program."""
        self._programs = [_Program(job, ())]
        self._bases: list[_Base] = []
        self.plans: list[FrontierPlan] = []
        """All that were written."""
        self._written: list[tuple[FrontierPlan, _Base]] = []
        """Those that let values go, and what they were made of."""

    def run(self) -> list[FrontierPlan]:
        """Plans within all the memory there could be, down to the least that is possible.

        Raises:
            DoesNotFitError: The search finds no plan whatever memory there is.
        """
        self._search(self._programs[0])
        fastest = self._bases[0].plan
        self.plans.append(fastest)
        limits, limit = list[float](), fastest.peak_bytes
        while len(limits) < MOST_LEVELS - 1:
            limit *= _LEVEL
            limits.append(limit)
            if not self.plan_within(limit):
                break
        tried = list(limits)
        while len(tried) < MOST_LEVELS - 1:
            limit = limit_between(unbeaten(self.plans), tried)
            if limit is None:
                break
            tried.append(limit)
            self.plan_within(limit)
        self._polish()
        found = unbeaten(self.plans)
        useful = [base for plan, base in self._written if any(plan is one for one in found)]
        for base in self._bases:
            if base not in useful:
                base.forget()
        return found

    def _polish(self) -> None:
        """Plan within the bytes of some plans as for that limit alone.

        Those of small programs, as what is written tells more of them than estimates do, and those
        that are slower than what lies between their neighbours.
        """
        base, found = self._bases[0], unbeaten(self.plans)
        slow = [
            one
            for more, one, less in zip(found, found[1:], found[2:], strict=False)
            if _WORTH * one.step_seconds > _between(more, less, one.peak_bytes)
        ]
        for plan in found:
            if base.peak_bytes > plan.peak_bytes and (plan in slow or base.fits.is_small):
                self._plan_alone(base, plan.peak_bytes)

    def _plan_alone(self, base: _Base, limit: float) -> None:
        """As ``FittedPlans.within`` plans for one limit, if that fits."""
        try:
            made = base.fits.within(limit, aim=(1 - MEMORY_MARGIN) * limit)
        except DoesNotFitError:
            return  # what fits has other arguments on the host, or is cut otherwise
        self.plans.append(_stored(self.job, made, limit))
        self._written.append((self.plans[-1], base))

    def plans_within(self, limit: float) -> list[FrontierPlan]:
        """All that fit a limit, after planning for it."""
        wanted = limit
        for _ in range(_MOST_WRITTEN):
            count = len(self.plans)
            self.plan_within(wanted)
            missed = [one.peak_bytes for one in self.plans[count:] if one.peak_bytes > limit]
            if not missed:
                break
            wanted -= min(missed) - limit  # what was written needs more than was wanted
            if wanted <= 0:
                break
        for base in self._worth_alone(limit):
            self._plan_alone(base, limit)
        return [one for one in self.plans if one.peak_bytes <= limit]

    def _worth_alone(self, limit: float) -> list[_Base]:
        """What a plan for this limit alone would be made of: the fastest, and that of the best."""
        best = min(
            (one for one in self._written if one[0].peak_bytes <= limit),
            key=lambda one: one[0].step_seconds,
            default=None,
        )
        bases = [self._bases[0], *([] if best is None else [best[1]])]
        return [base for base in dict.fromkeys(bases) if base.peak_bytes > limit]

    def plan_within(self, limit: float) -> bool:
        """Write the plans that may be fastest within a limit; False: nothing fits.

        Where nothing does by estimates what comes closest with the arguments that are on the host
        is written, before more go there.
        """
        fits = True
        while not self._fastest(limit):
            closest = min(self._newest(limit), key=lambda one: one.least_bytes(limit)).base
            peaks = [(self._write(way, limit).peak_bytes, way) for way in closest.ways]
            least, way = min(peaks, key=lambda one: one[0])
            if least <= _ABOUT * limit:
                break
            self._write(way, least)  # less has to go than for a limit that is out of reach
            if not self._more_on_host(limit):
                fits = False
                break
        for base in self._bases:
            for way in base.ways:
                way.forget()
        return fits

    def _fastest(self, limit: float) -> bool:
        """Write what may be fastest, until nothing that is left is; is there anything?"""
        fitting = [plan.step_seconds for plan in self.plans if plan.peak_bytes <= limit]
        best, written = min(fitting, default=math.inf), list[_Way]()
        while len(written) < _MOST_WRITTEN:
            ways = [way for way in self._ways(limit) if way not in written]
            way = min(ways, key=lambda one: one.least_seconds(limit), default=None)
            least = math.inf if way is None else way.least_seconds(limit)
            # A search is the way on where it may find what is as fast and needs no change.
            program = min(self._left(limit), key=lambda one: one.step_seconds, default=None)
            if program is not None and program.step_seconds <= least:
                if program.step_seconds >= _WORTH * best:
                    break
                best = min(best, self._search(program, limit))
                continue
            if way is None or least >= _WORTH * best:
                break
            if not way.is_estimated(limit):
                way.estimate(limit)
                continue
            written.append(way)
            plan = self._write(way, limit)
            if plan.peak_bytes <= limit * _ABOUT:
                best = min(best, plan.step_seconds)
        return math.isfinite(best) or bool(written)

    def _search(self, program: _Program, limit: float = 0.0) -> float:
        """Search once more; seconds of a step of what is found if that fits as it is."""
        found = program.next()
        if found is None:
            if not self._bases:
                assert program.error is not None
                raise program.error
            return math.inf
        base = _Base(program, found, self._recomputing)
        self._bases.append(base)
        if base.peak_bytes > limit:
            return math.inf
        self.plans.append(base.plan)
        return base.step_seconds

    def _left(self, limit: float) -> list[_Program]:
        """Programs of which the search may find other plans that are of use within a limit."""
        return [one for one in self._programs if one.is_left and one.peak_bytes > limit]

    def _ways(self, limit: float) -> list[_Way]:
        """What has to let values go to fit a limit."""
        bases = [base for base in self._bases if base.peak_bytes > limit]
        return [way for base in bases for way in base.ways]

    def _newest(self, limit: float) -> list[_Way]:
        """Those of them with the most arguments on the host."""
        return [way for way in self._ways(limit) if way.base.program is self._programs[-1]]

    def _write(self, way: _Way, limit: float) -> FrontierPlan:
        plan = _stored(self.job, way.written(limit), limit)
        self.plans.append(plan)
        self._written.append((plan, way.base))
        return plan

    def _more_on_host(self, limit: float) -> bool:
        """Read the program with more arguments on the host; False: there are no more."""
        if self._waiting_of is None:
            return False
        if self._waiting is None:
            self._waiting = self._waiting_of()
        waiting, before = self._waiting, self._on_host
        if before == len(waiting):
            return False
        needed = min(way.least_bytes(limit) for way in self._newest(limit))
        missing = (needed - limit) * self.job.num_devices
        count = count_that_frees(waiting, before, missing)
        self._on_host = min(max(count, MORE_ARGUMENTS * before), len(waiting))
        on_host = [one.argument for one in waiting[: self._on_host]]
        program = _Program(self.job, on_host)
        self._programs.append(program)
        self._search(program, limit)
        return True


def _stored(job: Job, made: Recomputed, limit: float) -> FrontierPlan:
    """What a job leaves of a plan within a limit."""
    allowed = str(limit) if math.isfinite(limit) else ALL_MEMORY
    within = replace(job, options=replace(job.options, memory_limit=allowed))
    planned = within.reduced_once(Planned(made.module, made.summary))
    assert planned.summary is not None
    return FrontierPlan(print_module(planned.module, "bytecode"), planned.summary)


def unbeaten(plans: Iterable[FrontierPlan]) -> list[FrontierPlan]:
    """Fastest first, each of less memory than all before it; of equal ones the first."""
    kept: list[FrontierPlan] = []
    for plan in sorted(plans, key=lambda one: (one.step_seconds, one.peak_bytes)):
        if not kept or plan.peak_bytes < (1 - _LEAST_SAVING) * kept[-1].peak_bytes:
            kept.append(plan)
    return kept


def _between(more: FrontierPlan, less: FrontierPlan, peak: float) -> float:
    """Seconds of a step with so many bytes, on the line between two plans."""
    share = (more.peak_bytes - peak) / (more.peak_bytes - less.peak_bytes)
    return more.step_seconds + share * (less.step_seconds - more.step_seconds)


def limit_between(plans: Sequence[FrontierPlan], tried: Sequence[float]) -> float | None:
    """A limit in the middle of the two neighbours that are furthest apart; None: they are close.

    What was tried between them led to the one that needs less: the middle is above that.
    """
    gaps: list[tuple[float, float]] = []
    for more, less in pairwise(plans):
        known = [one for one in tried if less.peak_bytes < one < more.peak_bytes]
        limit = math.sqrt(more.peak_bytes * max([less.peak_bytes, *known]))
        is_new = all(abs(math.log(limit / one)) > _LEAST_BETWEEN for one in tried)
        if is_new and more.peak_bytes > (1 + 2 * _LEAST_BETWEEN) * less.peak_bytes:
            gaps.append((more.peak_bytes / less.peak_bytes, limit))
    return max(gaps)[1] if gaps else None
