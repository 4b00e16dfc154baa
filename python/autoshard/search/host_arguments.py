"""How many arguments live in the memory of the host, where a step does not fit otherwise.

What is missing, and what arguments free of it, is read off a plan that does not fit: few plans are
made to find out.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from autoshard.errors import (
    BytesWithout,
    DoesNotFitError,
    PlanError,
    RewrittenWith,
    SlowerPlanError,
)
from autoshard.passes.memory_limit import WITHIN_REACH
from autoshard.planned.summary import DecidedValue, bytes_text, tensors_text
from autoshard.progress import running
from autoshard.search.automatic import (
    Job,
    Planned,
    end_if_interrupted,
    planned_of,
    step_seconds,
)
from autoshard.search.host_candidates import Candidate
from autoshard.search.searches import Searches

MORE_ARGUMENTS = 4
"""So many times as many arguments go to the host where those that did do not suffice."""

_ROUNDING = 1e-6
"""Share by which sums of the same seconds, or bytes, may differ."""

_LEAST_GAIN = 0.005
"""By which share of it a step has to get shorter for fewer arguments on the host to be tried."""


def plan_with_host(
    job: Job,
    plan: Callable[[Job, Sequence[int]], Planned],
    candidates: Callable[[], list[Candidate]],
    name_of: Callable[[int], str],
) -> Planned:
    """Plan, and as long as it does not fit, keep more in the memory of the host.

    First of what lives from the forward half to the backward half, then arguments: largest first of
    what costs the fewest transfers for a byte; the rest that is too much is taken to be spread over
    all devices, which frees no more than it does. If something of the first kind is there, the
    plan is compared with what arguments alone would give.

    Args:
        job: What is planned.
        plan: Plans a job with these arguments of ``main`` in the memory of the host.
        candidates: Which arguments may live there; called once, if at all.
        name_of: The user's name of an argument of ``main``.

    Raises:
        DoesNotFitError: Nothing makes it fit.
    """
    known: list[list[Candidate]] = []

    def waiting() -> list[Candidate]:
        if not known:
            known.append(candidates())
        return list(known[0])

    job = replace(job, searches=Searches())
    last, job = job, replace(job, insists=False)
    try:
        found, count = _with_arguments(job, plan, waiting, name_of)
    except DoesNotFitError as error:
        is_near = error.peak_bytes <= WITHIN_REACH * error.memory_limit
        if job.recomputing is None or not (last.insists and is_near):
            raise
        return _with_all_or_none(replace(last, is_last=True), plan, waiting(), name_of, error)
    if running().is_interrupted:
        return found
    if job.recomputing is None or not any(one.decision == "host" for one in _decided(found)):
        return found
    missing = found.bytes_without_host - job.memory_limit
    if missing <= 0:
        return found  # with nothing on the host it fits as well, and is slower
    arguments_alone = replace(
        job,
        recomputing=replace(job.recomputing, host_offload=False),
        most_seconds=step_seconds(found),
    )
    try:
        # Fewer arguments do not suffice: these do not.
        these = _Tried(None, missing, found.free_seconds, found.bytes_without, found.rewritten_with)
        other, _ = _with_more(arguments_alone, plan, waiting, name_of, count, these)
    except PlanError:  # nor need the host be able to compute what these arguments are for
        return found
    return min(found, other, key=step_seconds)


def _with_all_or_none(
    job: Job,
    plan: Callable[[Job, Sequence[int]], Planned],
    waiting: Sequence[Candidate],
    name_of: Callable[[int], str],
    closest: DoesNotFitError,
) -> Planned:
    """With no argument on the host, else with all: what needs least, where nothing fitted, and this
    is what was said of what came closest.

    Raises:
        DoesNotFitError: Nor does that.
    """
    missing, largest = closest.peak_bytes - closest.memory_limit, closest.largest
    for on_host in ((), waiting) if waiting else ((),):
        end_if_interrupted()
        tried = _with_these(job, plan, on_host)
        if tried.planned is not None:
            return tried.planned
        if tried.missing_bytes < missing:
            missing, largest = tried.missing_bytes, tried.largest
    names = [name_of(one.argument) for one in waiting]
    raise _does_not_fit_with_host(job, names, missing, largest)


def _with_arguments(
    job: Job,
    plan: Callable[[Job, Sequence[int]], Planned],
    candidates: Callable[[], list[Candidate]],
    name_of: Callable[[int], str],
) -> tuple[Planned, int]:
    """With the fewest of the first candidates that make it fit, as far as plans tell.

    Returns:
        The plan, and how many are on the host.
    """
    tried = _with_these(job, plan, ())
    if tried.planned is not None:
        return tried.planned, 0
    end_if_interrupted()
    return _with_more(job, plan, candidates, name_of, 0, tried)


def _with_more(
    job: Job,
    plan: Callable[[Job, Sequence[int]], Planned],
    candidates: Callable[[], list[Candidate]],
    name_of: Callable[[int], str],
    most: int,
    failed: _Tried,
) -> tuple[Planned, int]:
    """With more than ``most`` of the first candidates, with which nothing fits.

    As many as free what is missing by what the plan says that does not fit, until something fits.
    Then fewer again, as long as that may make the step shorter: with fewer no less has to be
    computed again.
    """
    waiting = candidates()
    arguments = [one.argument for one in waiting]
    least, enough = 0, 0
    while True:
        if most == len(waiting):
            names = [name_of(one) for one in arguments]
            raise _does_not_fit_with_host(job, names, failed.missing_bytes, failed.largest)
        before = most
        if failed.bytes_without is not None:
            most = failed.fewest(arguments, most, job.memory_limit)
            least = before + 1
            if not before and not failed.knows(arguments[:most], job.memory_limit):
                most = failed.fewest_at_least(arguments, job.aimed_bytes)
        else:
            least = count_that_frees(waiting, most, failed.missing_bytes * job.num_devices)
            several = max(least, MORE_ARGUMENTS * most)
            most = min(max(least, enough or several), several, len(waiting))
        rewritten_with = failed.rewritten_within(job.memory_limit, arguments[before:most])
        tried = _with_these(job, plan, waiting[:most], rewritten_with)
        if rewritten_with is not None and tried.planned is None and most == len(waiting):
            tried = _with_these(job, plan, waiting)
        if tried.planned is not None:
            found = tried.planned
            free = failed.free_seconds
            if rewritten_with is not None and not _is_least(job, waiting[:most], found, free):
                found = _searched_again(job, plan, arguments[:most], found)
            break
        freed = failed.missing_bytes - tried.missing_bytes
        sent = sum(one.bytes for one in waiting[before:most])
        more = tried.missing_bytes * sent / freed if freed > 0 else math.inf
        enough = count_that_frees(waiting, most, more)
        failed = tried
        end_if_interrupted()
    while least < most and not running().is_interrupted:
        useful = (1 - _LEAST_GAIN) * min(step_seconds(found), job.most_seconds)
        if _seconds_with_fewer(found, failed) >= useful:
            break
        middle = (least + most) // 2
        if failed.bytes_without is not None:
            if not failed.knows(arguments[before:most], job.memory_limit):
                break  # what is told of these was not true
            left = job.memory_limit - _peak_bytes(found)
            middle = failed.fewest_within(arguments, before, most, left)
            if middle == most:
                break
        try:
            rewritten_with = failed.rewritten_within(job.memory_limit, arguments[before:middle])
            tried = _with_these(job, plan, waiting[:middle], rewritten_with)
        except SlowerPlanError:
            break
        if tried.planned is None:
            if failed.bytes_without is not None:
                break  # nor would what is told of still others be true
            failed, before, least = tried, middle, middle + 1
            continue
        if step_seconds(tried.planned) >= step_seconds(found):
            break
        found, most = tried.planned, middle
    return found, most


def _is_least(job: Job, on_host: Sequence[Candidate], found: Planned, free_seconds: float) -> bool:
    """Could a search that knows what is on the host save no more than what is computed again?

    So where the plan that was rewritten cuts everything as the one with all the memory there could
    be, a step of ``free_seconds``, and sends no more than with all that is on the host cut over all
    devices. A plan that is cut otherwise and computes less again may be faster: it is passed over.
    """
    assert found.summary is not None
    summary = found.summary
    least = sum(one.bytes * one.transfers for one in on_host) / job.num_devices
    if summary.host_transfer_bytes > (1 + _ROUNDING) * least:
        return False
    alone = step_seconds(found) - summary.recompute_seconds
    sent = (0.0, summary.host_exposed_seconds)
    return any(math.isclose(alone - one, free_seconds, rel_tol=_ROUNDING) for one in sent)


def _searched_again(
    job: Job,
    plan: Callable[[Job, Sequence[int]], Planned],
    on_host: Sequence[int],
    found: Planned,
) -> Planned:
    """A plan that was rewritten, or what a search that knows what is on the host finds, if faster.

    What is computed again takes as long in both, so that the search alone tells.
    """
    assert found.summary is not None
    seconds = step_seconds(found)
    least = seconds - found.summary.recompute_seconds
    try:
        return plan(replace(job, most_seconds=seconds, most_free_seconds=least), on_host)
    except PlanError:  # it does not fit, or is slower
        return found


@dataclass(frozen=True, slots=True)
class _Tried:
    """What came of planning with some arguments on the host."""

    planned: Planned | None
    """None: it does not fit."""
    missing_bytes: float
    """On one device."""
    free_seconds: float
    """See ``Planned.free_seconds``."""
    bytes_without: BytesWithout | None = None
    """See ``DoesNotFitError``."""
    rewritten_with: RewrittenWith | None = None
    """See ``DoesNotFitError``."""
    largest: str = ""
    """See ``DoesNotFitError``."""
    least_without: BytesWithout | None = None
    """See ``DoesNotFitError``."""

    def fewest(self, arguments: Sequence[int], count: int, limit: float) -> int:
        """How many of the first have to go in all where ``count`` do not suffice; all of them, if
        that does not suffice either."""
        return self._fewest(arguments, count, len(arguments), limit)

    def fewest_at_least(self, arguments: Sequence[int], limit: float) -> int:
        """How many of the first have to go at least, whatever else is decided then; all of them, if
        nobody can tell."""
        told = self.least_without
        if told is None:
            return len(arguments)
        fits = partial(_fits, told, arguments, limit)
        return 1 + bisect_left(range(1, len(arguments)), True, key=fits)

    def fewest_within(self, arguments: Sequence[int], count: int, most: int, left: float) -> int:
        """The same where ``most`` leave so many bytes free, and ``count`` did not suffice."""
        return self._fewest(arguments, count, most, self._needed(arguments, count, most) + left)

    def knows(self, more: Sequence[int], limit: float) -> bool:
        """Is it told that with more arguments on the host it fits so many bytes?"""
        return self.bytes_without is not None and self.bytes_without(more) <= limit

    def rewritten_within(self, limit: float, more: Sequence[int]) -> RewrittenWith | None:
        """What rewrites the plan, if with more arguments on the host it is to fit so many bytes."""
        return self.rewritten_with if self.knows(more, limit) else None

    def _fewest(self, arguments: Sequence[int], count: int, most: int, limit: float) -> int:
        def fits(fewer: int) -> bool:
            return self._needed(arguments, count, fewer) <= limit

        return count + 1 + bisect_left(range(count + 1, most), True, key=fits)

    def _needed(self, arguments: Sequence[int], count: int, most: int) -> float:
        """Bytes of a device with ``most`` of the first on the host instead of ``count``."""
        assert self.bytes_without is not None
        return self.bytes_without(arguments[count:most])


def _fits(needed: BytesWithout, arguments: Sequence[int], limit: float, count: int) -> bool:
    """Are so many bytes enough with the first arguments on the host?"""
    return needed(arguments[:count]) <= limit


def _peak_bytes(planned: Planned) -> float:
    assert planned.summary is not None
    return planned.summary.peak_bytes_per_device


def _seconds_with_fewer(found: Planned, failed: _Tried) -> float:
    """What a step takes with fewer arguments on the host than in a plan, or more.

    That of the search with those with which nothing fits, and what is added to the search's in the
    plan; 0 where that is not known.
    """
    if not (found.free_seconds and failed.free_seconds):
        return 0.0
    return failed.free_seconds + step_seconds(found) - found.free_seconds


def _with_these(
    job: Job,
    plan: Callable[[Job, Sequence[int]], Planned],
    on_host: Sequence[Candidate],
    rewritten_with: RewrittenWith | None = None,
) -> _Tried:
    """Plan with these arguments on the host, or rewrite the plan that came closest without."""
    arguments = [one.argument for one in on_host]
    try:
        planned = _planned(job, plan, arguments, rewritten_with)
    except DoesNotFitError as error:
        return _Tried(
            None,
            error.peak_bytes - error.memory_limit,
            error.free_seconds,
            error.bytes_without,
            error.rewritten_with,
            error.largest,
            error.least_without,
        )
    assert planned.summary is not None
    missing = planned.summary.peak_bytes_per_device - job.memory_limit
    if missing > 0:
        largest = tensors_text(planned.summary.peak_values)
        return _Tried(None, missing, planned.free_seconds, largest=largest)
    return _Tried(planned, 0.0, planned.free_seconds)


def _planned(
    job: Job,
    plan: Callable[[Job, Sequence[int]], Planned],
    arguments: Sequence[int],
    rewritten_with: RewrittenWith | None,
) -> Planned:
    if rewritten_with is None:
        return plan(job, arguments)
    try:
        rewritten = planned_of(rewritten_with(arguments, job.memory_limit))
    except DoesNotFitError:
        raise
    except PlanError:  # another plan may cut what the host has so that nothing is sent there
        return plan(job, arguments)
    return job.useful(job.reduced_once(rewritten))


def count_that_frees(waiting: Sequence[Candidate], taken: int, missing: float) -> int:
    """How many of the first have to go besides those taken, so that so many bytes of whole arrays
    are free: one more at least."""
    count = taken
    while count < len(waiting) and (missing > 0 or count == taken):
        missing -= waiting[count].bytes
        count += 1
    return count


def _does_not_fit_with_host(
    job: Job, names: Sequence[str], missing: float, largest: str
) -> DoesNotFitError:
    limit = job.memory_limit
    kept = f"{', '.join(names[:6])}{', ..' if len(names) > 6 else ''}" if names else "nothing"
    stays = f" Largest tensors at its worst moment, on one device: {largest}." if largest else ""
    error = DoesNotFitError(
        f"{job.name}: no plan fits, even with all optimizer states and parameters that are read"
        f" once in the memory of the host ({len(names)} arguments: {kept}): the plan needs"
        f" {bytes_text(limit + missing)} on each of {job.num_devices} devices,"
        f" {bytes_text(missing)} more than the {bytes_text(limit)} allowed.{stays}",
        None,
        limit + missing,
        limit,
        advice="Use more chips or a smaller batch.",
    )
    error.largest = largest
    return error


def _decided(planned: Planned) -> Sequence[DecidedValue]:
    return () if planned.summary is None else planned.summary.decided
