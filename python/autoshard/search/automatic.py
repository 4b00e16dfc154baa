"""The fastest plan that fits: the search, and what saves memory around it.

A program that does not fit as it is searched may fit once optimizer states are spread over the axes
that replicate them, once forward values are computed again, or once arguments live in the memory of
the host. ``autoshard.plan`` and the pass ``autoshard-plan`` try these here, in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from autoshard.cluster import Cluster
from autoshard.errors import (
    BytesWithout,
    DoesNotFitError,
    PlanError,
    RewrittenWith,
    SlowerPlanError,
)
from autoshard.ir import mlir, parse_bytes
from autoshard.ir.inline import bytes_of
from autoshard.passes.memory_limit import WITHIN_REACH, aim_of, memory_limit_of
from autoshard.passes.optimizer_parallel import OptimizerParallel
from autoshard.passes.pipeline import run_passes
from autoshard.passes.recompute import FittedPlans, Recompute, Recomputed, flatten
from autoshard.passes.recompute import recompute as run_recompute
from autoshard.passes.recursive_programming import (
    PlannedProgram,
    ReadProgram,
    RecursiveProgramming,
    estimate_planned,
    read_module,
    write_planned,
)
from autoshard.passes.reduce_once import SumsOnce
from autoshard.planned.summary import PlanSummary, bytes_text, tensors_text
from autoshard.progress import running
from autoshard.rewrites.recomputation.marks import has_switches
from autoshard.search.inputs import inputs_alike
from autoshard.search.last_search import Asked, LastSearch
from autoshard.search.searches import SearchedProgram, Searches

ALL_MEMORY = "1e30"
"""Bytes that no plan needs."""

_MORE_MEMORY = (math.inf, 4.0, 2.5, 1.7, 1.3, 1.0)
"""What plans may need before values are dropped, over what there is."""

_HARDLY_LESS = 0.95
"""The search is not asked for a plan within more than this part of the last one's peak."""

_MUCH_SLOWER = 1.25
"""What fits and takes so many times the step that all the memory allows may let too little go."""

_LESS = 0.8
"""Where nothing fits, the search is asked for plans within this part of the last one's peak."""

_MOST_SPREAD = 3
"""The level of optimizer parallelism that leaves least on a device."""

Read = Callable[[Sequence[int]], mlir.Module]
"""Makes the module that is planned anew; these arguments of its ``main`` live in the memory of the
host, besides marked ones."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A planned module and what its plan costs; None where there is no cluster."""

    module: mlir.Module
    summary: PlanSummary | None
    searched: PlannedProgram | None = None
    """What the search read and found, where the module is as it left it."""
    bytes_without_host: float = math.inf
    """The least that it is known to need with no value sent to the host and back."""
    bytes_without: BytesWithout | None = None
    """What it needs with no value sent, and some arguments on the host; see ``DoesNotFitError``."""
    free_seconds: float = 0.0
    """A step of the plan with all the memory there could be, if that was searched."""
    rewritten_with: RewrittenWith | None = None
    """See ``DoesNotFitError``."""
    estimated_seconds: float = math.inf
    """See ``Recomputed``."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is planned, for which machine, and what may be done to make it fit."""

    name: str
    """Name of the program."""
    read: Read
    num_devices: int
    cluster: Cluster | None
    """Needed by the search, by spreading in it, and by recomputation."""
    options: RecursiveProgramming
    spreading: OptimizerParallel | None
    """Arguments that it names are numbers in ``main``."""
    recomputing: Recompute | None
    mode: str = "auto"
    """As in ``autoshard.plan``."""
    has_limit: bool = False
    """Was a limit of memory asked for?"""
    most_seconds: float = math.inf
    """Plans of slower steps are of no use."""
    most_free_seconds: float = math.inf
    """Nor are those of which the step with all the memory there could be is slower."""
    insists: bool = True
    """Is more tried before a limit is refused? Not where others are planned then."""
    is_last: bool = False
    """Was all else tried, and found nothing?"""
    last_search: LastSearch | None = None
    """The one before, of this program within more memory, where several are made."""
    program: object = None
    """All that ``read`` makes the module of, but for arguments on the host; where it is equal, so
    is the module. None: nobody says."""
    searches: Searches | None = None
    """What was searched before in the same planning, with values computed again."""

    @property
    def memory_limit(self) -> float:
        """Bytes that a plan may use of a device."""
        return memory_limit_of(self._cluster, self.options.memory_limit)

    @property
    def aimed_bytes(self) -> float:
        """Bytes of a device to keep within, if that can be."""
        return aim_of(self.memory_limit, self.options.memory_limit)

    @property
    def _cluster(self) -> Cluster:
        assert self.cluster is not None
        return self.cluster

    def plan(self, on_host: Sequence[int] = ()) -> Planned:
        """Search, spread and compute again, as asked.

        Raises:
            DoesNotFitError: No plan fits.
            SlowerPlanError: None is as fast as asked for.
        """
        return self.useful(self._planned(on_host))

    def useful(self, planned: Planned) -> Planned:
        """A plan, if it is as fast as asked for.

        Raises:
            SlowerPlanError: It is not.
        """
        if step_seconds(planned) < self.most_seconds:
            return planned
        raise self._slower()

    def _planned(self, on_host: Sequence[int]) -> Planned:
        if self.recomputing is not None and self.recomputing.decides:
            plan = self._plan_at_last if self.is_last else self._plan_recomputing
            searches = self.searches or Searches()
            known = searches.of(on_host, lambda: self.read_flat(on_host))
            planned = plan(self.recomputing, known)
            searches.taken(on_host)
            return self.reduced_once(planned)
        found = self.search(on_host)
        if self.changes(found.module):
            if self.last_search is not None:
                self.last_search.forget()
            summary = self.finish(found.module, found.summary)
            return self.reduced_once(Planned(found.module, summary))
        if self.has_limit:
            self.check_fits(found.summary)
        return self.reduced_once(Planned(found.module, found.summary, found))

    def reduced_once(self, planned: Planned) -> Planned:
        """With what loops add up reduced behind them, if that is faster and fits."""
        if self.cluster is None:
            return planned
        overlap, trip_count = self.options.overlap, self.options.trip_count
        read = partial(SumsOnce, planned.module, self.cluster, overlap, trip_count)
        last = self.last_search
        sums = read() if last is None else last.sums_once(planned.module, read)
        limit, found = self.memory_limit, planned.searched
        if found is not None:  # what sums take besides lies on all stages
            limit += found.summary.peak_bytes_per_device - found.limited_bytes
        made = sums.within(limit, planned.summary)
        if made is None:
            return planned
        return replace(planned, module=made.module, summary=made.summary, searched=None)

    def search(self, on_host: Sequence[int] = ()) -> PlannedProgram:
        """The search alone, with what it takes to plan again; the last one, if that does.

        If no plan fits as it is, but it will be spread, the fastest one of all.
        """
        last, program = self.last_search, (self.program, tuple(on_host))
        if last is None or self.program is None:
            return self._search(self.read(on_host))
        asked = Asked.of(program, self.options, self.spreading, self.recomputing)
        known = last.within(asked, self.memory_limit)
        if known is None:
            return last.searched(asked, self.memory_limit, lambda: self._search(self.read(on_host)))
        return self._not_slower(replace(known, options=self.options))

    def _search(self, module: mlir.Module) -> PlannedProgram:
        program = read_module(module, self._cluster, self.options)
        try:
            return write_planned(self._not_slower(self.searched(program, self.options)))
        except DoesNotFitError:
            if self.spreading is None:
                raise
        options = replace(self.options, memory_limit=ALL_MEMORY)
        return write_planned(self._not_slower(self.searched(program, options)))

    def _not_slower(self, found: PlannedProgram) -> PlannedProgram:
        """Raise where a plan is of no use; what spreads it, or computes again, only adds to it.

        Raises:
            SlowerPlanError: It is slower than asked for.
        """
        if seconds_with_sums_once(found) < self.most_seconds:
            return found
        raise self._slower()

    def _slower(self) -> SlowerPlanError:
        return SlowerPlanError(f"{self.name}: no plan is faster than one that is known.")

    def read_flat(self, on_host: Sequence[int] = ()) -> ReadProgram:
        """The program without calls, so that rewritten copies of its plans are made as it is."""
        module = self.read(on_host)
        flatten(module)
        return read_module(module, self._cluster, self.options)

    def searched(self, program: ReadProgram, options: RecursiveProgramming) -> PlannedProgram:
        """What the search finds, with inputs cut alike; the module stays as it is."""
        recomputing = self.recomputing
        leaves_more = recomputing is not None and recomputing.decides  # than what is in flight
        stages = 1 if leaves_more else program.stages
        return inputs_alike(program.searched(options, self.most_seconds, stages))

    def changes(self, module: mlir.Module) -> bool:
        """Does ``finish`` change what a search left?"""
        return self.spreading is not None or self._has_to_recompute(module)

    def finish(self, module: mlir.Module, found: PlanSummary) -> PlanSummary:
        """Spread what a plan leaves on every device, and compute again what marks say.

        Raises:
            DoesNotFitError: Then it needs too much memory.
        """
        summary = self._spread(module, found)
        summary = self.recomputed(module, summary) or summary
        if self.spreading is not None or self.has_limit:
            self.check_fits(summary)
        return summary

    def recomputed(self, module: mlir.Module, summary: PlanSummary | None) -> PlanSummary | None:
        """Let the pass rewrite a planned module, if there is something to do.

        Raises:
            PlanError: There is, and no cluster.
        """
        if self.recomputing is None or not self._has_to_recompute(module):
            return summary
        if self.cluster is None:
            raise PlanError(
                f"{self.name}: the switches of autoshard.recompute need a cluster: without one"
                ' nothing is known of what is sent. Give cluster="v5e:4x4" or the like, or'
                ' recompute="none".'
            )
        return run_recompute(module, self.cluster, self.recomputing)

    def check_fits(self, summary: PlanSummary) -> None:
        """Hold a plan to the limit, although no search could choose another one.

        Raises:
            DoesNotFitError: It needs more.
        """
        needed, limit = summary.peak_bytes_per_device, self.memory_limit
        if needed <= limit:
            return
        how = f"in mode {self.mode!r}"
        if self.spreading is not None:
            how += f" with optimizer parallelism of level {self.spreading.level}"
        advice = "Use more chips or a smaller batch, or give"
        if self.spreading is None or self.spreading.level < _MOST_SPREAD:
            advice += f" optimizer_parallel={_MOST_SPREAD},"
        if self.recomputing is None or self.recomputing.choose == "marks":
            advice += ' recompute="auto",'
        advice += ' host_offload="auto"'
        if self.mode != "auto":
            advice += ' or mode="auto"'
        elif self.spreading is not None:
            advice += ", or leave optimizer_parallel out: the search then chooses among all plans"
        largest = tensors_text(summary.peak_values)
        error = DoesNotFitError(
            f"{self.name}: {how} the plan needs {bytes_text(needed)} on each of"
            f" {self.num_devices} devices, {bytes_text(needed - limit)} more than the"
            f" {bytes_text(limit)} allowed. Largest tensors at that moment, on one device:"
            f" {largest}. {advice}.",
            None,
            needed,
            limit,
        )
        error.largest = largest
        raise error

    def _has_to_recompute(self, module: mlir.Module) -> bool:
        recomputing = self.recomputing
        return recomputing is not None and (recomputing.decides or has_switches(bytes_of(module)))

    def _spread(self, module: mlir.Module, found: PlanSummary) -> PlanSummary:
        if self.spreading is None:
            return found
        seconds = dict(found.planning_seconds)
        run_passes(module, [self.spreading], timing=lambda name, took: seconds.update({name: took}))
        return replace(
            estimate_planned(module, self._cluster, self.options, seconds),
            memory_limit=self.memory_limit,
            cost_model=found.cost_model,
        )

    def _plan_recomputing(self, recomputing: Recompute, known: SearchedProgram) -> Planned:
        """The fastest of several plans that fit once values are computed again.

        A plan that fits as it is may have to cut more, and send more, than one whose activations
        are dropped. So the search is given more memory than there is, from all there could be
        down to what there is: with less memory plans only get slower.

        Raises:
            DoesNotFitError: None fits; of all plans the one that needs least.
        """
        limit = self.memory_limit
        best: Planned | None = None
        failed: list[DoesNotFitError] = []
        hopeless: list[FittedPlans] = []
        free: PlannedProgram | None = None
        refused: DoesNotFitError | None = None
        last_seconds, last_peak = 0.0, math.inf
        least, estimated, is_beaten = 0.0, math.inf, False
        for factor in _MORE_MEMORY:
            if best is not None and last_seconds >= step_seconds(best):
                break  # nor is a plan within less memory faster
            most = last_peak if factor == 1 else _HARDLY_LESS * last_peak
            if math.isfinite(factor) and limit * factor >= most:
                continue  # the last plan keeps within this, or hardly needs more
            is_known = is_beaten or best is not None
            is_known = is_known or any(one.peak_bytes <= least for one in failed)
            if limit * factor < least and is_known:
                break  # no plan keeps within this, nor is its error asked for
            allowed = str(limit * factor) if math.isfinite(factor) else ALL_MEMORY
            try:
                found = self.searched_once(known, allowed)
            except DoesNotFitError as error:
                refused = error
                break  # nor does anything fit less memory
            last_peak = found.summary.peak_bytes_per_device
            last_seconds = found.summary.step_seconds
            free = free or found
            least = max(least, least_bytes(found))
            most_seconds = self.most_seconds if best is None else step_seconds(best)
            if last_seconds >= min(most_seconds, self.most_free_seconds):
                break  # and computing again only adds to it
            fitted = self.fitted_once(known, found, recomputing)
            others_follow = factor > 1 and not running().is_interrupted
            if others_follow and not fitted.may_fit(self.limit_of(recomputing)):
                hopeless.append(fitted)
                continue
            try:
                planned = self._within(fitted, recomputing, most_seconds, estimated)
            except DoesNotFitError as error:
                failed.append(error)
            except SlowerPlanError:
                is_beaten = True
            else:
                if best is None or step_seconds(planned) < step_seconds(best):
                    best, estimated = planned, planned.estimated_seconds
                if planned.module is known.program.module:
                    break  # it fits as it is
            if running().is_interrupted:
                break
        if best is None:
            end_if_interrupted()
            for fitted in hopeless:  # by an estimate, which may be too high
                try:
                    best = self._within(fitted, recomputing, self.most_seconds)
                    break
                except DoesNotFitError as error:
                    failed.append(error)
        if best is None and not failed:
            raise self._slower()
        if refused is not None and refused.within is not None:
            failed.append(refused.within(limit))  # less may be missing than for what was rewritten
        free_seconds = 0.0 if free is None else free.summary.step_seconds
        try:
            if best is None:
                best = _at_last(self, known, free, refused, failed, recomputing)
            elif free is not None and failed and _is_slow(best, free):
                best = _least_of(self, known, free, refused, recomputing, best)
        except DoesNotFitError as error:
            error.free_seconds = free_seconds
            raise
        return replace(best, free_seconds=free_seconds)

    def _plan_at_last(self, recomputing: Recompute, known: SearchedProgram) -> Planned:
        found = self.searched_once(known, ALL_MEMORY)
        return _least_of(self, known, found, None, recomputing)

    def limit_of(self, recomputing: Recompute) -> float:
        """Bytes that what is computed again may use of a device."""
        return memory_limit_of(self._cluster, recomputing.memory_limit)

    def _within(
        self,
        fitted: FittedPlans,
        recomputing: Recompute,
        most_seconds: float,
        most_estimated: float = math.inf,
    ) -> Planned:
        """A plan of the search, spread and computed again: a copy of its module, if it changes.

        Raises:
            DoesNotFitError: Nothing makes it fit.
            SlowerPlanError: Nothing does in less than ``most_seconds`` of a step, or in less than
                ``most_estimated`` by an estimate.
        """
        return planned_of(fitted.within(self.limit_of(recomputing), most_seconds, most_estimated))

    def searched_once(self, known: SearchedProgram, memory_limit: str) -> PlannedProgram:
        """As ``searched``, within a limit, if that was not searched before."""
        options = replace(self.options, memory_limit=memory_limit)
        return known.searched(
            float(memory_limit), self.most_seconds, lambda: self.searched(known.program, options)
        )

    def fitted_once(
        self, known: SearchedProgram, found: PlannedProgram, recomputing: Recompute
    ) -> FittedPlans:
        """As ``fitted_plans``, if these were not made before."""
        return known.fitted(found, recomputing, lambda: self.fitted_plans(found, recomputing))

    def fitted_plans(self, found: PlannedProgram, recomputing: Recompute) -> FittedPlans:
        """A plan of the search, spread, to be computed again within different limits."""
        found, costed = write_planned(found), None
        module = found.module
        if self.spreading is None:
            costed = found.costed()
        else:
            module = parse_bytes(bytes_of(module), module.context, self.name)
            self._spread(module, found.summary)
        return FittedPlans(module, self._cluster, recomputing, costed)


def _at_last(
    job: Job,
    known: SearchedProgram,
    free: PlannedProgram | None,
    refused: DoesNotFitError | None,
    failed: Sequence[DoesNotFitError],
    recomputing: Recompute,
) -> Planned:
    """What fits where nothing was found, if others are not planned then.

    Raises:
        DoesNotFitError: Nothing fits.
    """
    closest = min(failed, key=lambda error: error.peak_bytes)
    is_near = closest.peak_bytes <= WITHIN_REACH * job.memory_limit
    is_asked = job.insists and is_near and math.isinf(job.most_seconds)
    if free is None or not is_asked:
        raise closest
    return _least_of(job, known, free, refused, recomputing)


def _is_slow(best: Planned, free: PlannedProgram) -> bool:
    """May plans that were not made to fit be faster than this, with more that is let go?"""
    is_slow = step_seconds(best) > _MUCH_SLOWER * free.summary.step_seconds
    return is_slow and not running().is_interrupted


def _least_of(
    job: Job,
    known: SearchedProgram,
    free: PlannedProgram,
    refused: DoesNotFitError | None,
    recomputing: Recompute,
    best: Planned | None = None,
) -> Planned:
    """What fits of plans that need less and less: the same ones are tried for all limits.

    Args:
        job: What is planned.
        known: Its program.
        free: Its plan with all the memory there could be.
        refused: What the search found nothing within, if there was such a limit.
        recomputing: What may become of values.
        best: What fits already: others have to be faster.

    Raises:
        DoesNotFitError: Nothing fits; of all that was tried with what needs least.
    """
    limit = job.limit_of(recomputing)
    failed: list[DoesNotFitError] = []
    for found in _of_less(lambda less: job.searched_once(known, less), free, refused):
        if best is not None and found.summary.step_seconds >= step_seconds(best):
            break
        try:
            fitted = job.fitted_once(known, found, recomputing)
            planned = planned_of(fitted.within_least(limit))
        except DoesNotFitError as error:
            failed.append(error)
        else:
            best = planned if best is None else min(best, planned, key=step_seconds)
        if running().is_interrupted:
            break
    if best is None:
        raise min(failed, key=lambda error: error.peak_bytes)
    return best


def _of_less(
    search: Callable[[str], PlannedProgram],
    free: PlannedProgram,
    refused: DoesNotFitError | None,
) -> Iterator[PlannedProgram]:
    """Plans of the search, the first with all memory, the last the one that needs least."""
    yield free
    peak, less = free.summary.peak_bytes_per_device, 0.0
    while less < peak:
        less, is_last = max(less, _LESS * peak), less > 0
        if not is_last and refused is not None and less <= refused.memory_limit:
            less = refused.peak_bytes
            continue
        try:
            found = search(str(less))
        except DoesNotFitError as error:
            if is_last:
                return
            less = error.peak_bytes
            continue
        if found.summary.peak_bytes_per_device >= peak:
            return  # nobody searches by memory, as with symbolic costs
        yield found
        if is_last:
            return
        peak, less = found.summary.peak_bytes_per_device, 0.0


def planned_of(made: Recomputed) -> Planned:
    """What was computed again, as what is planned."""
    return Planned(
        made.module,
        made.summary,
        bytes_without_host=made.bytes_without_host,
        bytes_without=made.bytes_without,
        rewritten_with=made.rewritten_with,
        estimated_seconds=made.estimated_seconds,
    )


def least_bytes(found: PlannedProgram) -> float:
    """Bytes that any plan needs on a device at the fullest moment of this one.

    The values that live then, each cut over all devices.
    """
    plan, mesh = found.plan, found.mesh.without_unit_axes()
    parts = [
        math.prod(mesh.axes[axis].size for axes in dims for axis in axes) for dims in plan.shardings
    ]
    rows = plan.value_sharding
    return sum(size * parts[rows[value]] / mesh.size for value, size in plan.peak_values)


def seconds_with_sums_once(found: PlannedProgram) -> float:
    """A step as the search weighs it: what loops add up is reduced behind them where that pays."""
    seconds = found.summary.step_seconds
    return min(seconds, found.plan.objective) if found.options.cost_model == "seconds" else seconds


def end_if_interrupted() -> None:
    """Ctrl-C left a plan that does not fit: no other is tried."""
    if running().is_interrupted:
        raise KeyboardInterrupt


def step_seconds(planned: Planned) -> float:
    """Seconds of a step; the plan knows its cluster."""
    assert planned.summary is not None
    return planned.summary.step_seconds
