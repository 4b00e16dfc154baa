"""Compute forward values again in the backward half, or keep them on the host until then, so that
the step fits the memory.

before  %h = stablehlo.tanh %a                        // lives until the last line
        ..
        %g = stablehlo.multiply %dy, %h
after   %h = stablehlo.tanh %a
        ..
        %b:2 = stablehlo.optimization_barrier %a, %dy
        %h2 = stablehlo.tanh %b#0
        %g = stablehlo.multiply %b#1, %h2

or      %h = stablehlo.tanh %a
        %m = stablehlo.custom_call @annotate_device_placement(%h) {.. = "pinned_host"}
        %w:2 = stablehlo.optimization_barrier %m, %x   // what reads x behind waits
        ..
        %b:2 = stablehlo.optimization_barrier %w#0, %dy
        %h2 = stablehlo.custom_call @annotate_device_placement(%b#0) {.. = "device"}
        %g = stablehlo.multiply %b#1, %h2

Copies and moves have the attributes of their originals, so that the plan stays.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf
from typing import ClassVar, Literal

from autoshard.cluster import Cluster
from autoshard.errors import (
    BytesWithout,
    DoesNotFitError,
    PassOptionError,
    RewrittenWith,
    SlowerPlanError,
)
from autoshard.ir import mlir, parse_bytes
from autoshard.ir.attributes import PLAN
from autoshard.ir.garbage import no_collection
from autoshard.ir.inline import bytes_of, inline_calls, replace_body
from autoshard.ir.module import functions_of
from autoshard.ir.native import nested, run_native
from autoshard.passes.as_written import decide_again
from autoshard.passes.base import Pass
from autoshard.passes.fitting import MOST_OFF, Copies, Fitting, Trial, Trials
from autoshard.passes.host_offload import offload_planned
from autoshard.passes.least_memory import LeastMemory
from autoshard.passes.memory_limit import aim_of, memory_limit_of, read_bytes_text
from autoshard.planned.given_plan import (
    Costed,
    cluster_for,
    cost_of_module,
    estimated,
    summary_on,
)
from autoshard.planned.summarize import peak_values
from autoshard.planned.summary import DecidedValue, PlanSummary, bytes_text, tensors_text
from autoshard.rewrites.recomputation.arguments import WaitingArguments
from autoshard.rewrites.recomputation.block import Block, blocks_of, erase_unread
from autoshard.rewrites.recomputation.choice import Choice
from autoshard.rewrites.recomputation.kept import check_gathers, keep_gathered, keep_in_loops
from autoshard.rewrites.recomputation.marks import has_switches, keep_marked
from autoshard.rewrites.recomputation.question import Rules

_ERASE_UNREAD = nested(
    ("builtin.module", "func.func"), "trivial-dce", "recursive=false remove-blocks=false"
)


@dataclass(frozen=True)
class Recompute(Pass):
    """Compute values again instead of keeping them, so that a planned module fits the memory.

    Or send them to the host and back, where it is told to. The cheapest set that is found. A module
    that fits with some of it to spare stays as it is.
    """

    name: ClassVar[str] = "autoshard-recompute"

    cluster: str = ""
    """What the program runs on: v5p:4x4x4, ..; usually what it was planned for."""

    compiler: str = ""
    """Another compiler than the installed one for the chips: xla-tpu-0.0.42, unknown, .., with
    :without=RULE,RULE behind to switch rules off; docs/design/compilers.md lists both."""

    memory_limit: str = ""
    """What the step may use of a device, 14GiB or bytes; usually the chip's memory less 8%."""

    choose: Literal["auto", "marks"] = "auto"
    """auto: whatever makes the step fit; marks: nothing but what is marked, as marked."""

    host_offload: bool = False
    """May values wait in the memory of the host until they are read again, to make the step fit?
    With choose=auto what is cheaper is taken."""

    mp_comm_recompute: bool = True
    """May results of collectives be computed, and so sent, again?"""

    parallel_optimizer_comm_recompute: bool = True
    """May what is made of parameters, and gathered of them, be made and gathered again?"""

    overlap: float = 0.0
    """Share of communication that hides behind compute, 0 to 1."""

    trip_count: int = 100
    """Assumed trips of loops whose count cannot be read from the program."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.choose not in ("auto", "marks"):
            raise PassOptionError(
                f"{self.name}: option choose={self.choose} is not known. Give auto or marks."
            )
        if self.memory_limit:
            read_bytes_text(self.memory_limit, f"{self.name}: option memory-limit")
        if not 0 <= self.overlap <= 1:
            raise PassOptionError(
                f"{self.name}: option overlap={self.overlap} is out of range. Give 0 to 1."
            )
        if self.trip_count < 0:
            raise PassOptionError(
                f"{self.name}: option trip-count={self.trip_count} is out of range. Give 0 or more."
            )

    @property
    def decides(self) -> bool:
        """May the pass choose what becomes of values, besides what is marked?"""
        return self.choose == "auto" or self.host_offload

    def run(self, module: mlir.Module) -> None:
        """See ``Pass.run``; raises DoesNotFitError where nothing makes the step fit."""
        cluster = cluster_for(module, self.cluster, self.name, self.compiler)
        recompute(module, cluster, self)


def recompute(module: mlir.Module, cluster: Cluster, options: Recompute) -> PlanSummary:
    """What the pass does, for a cluster that has no name.

    Returns:
        The summary of the plan as it is now; it goes to the module, too.

    Raises:
        DoesNotFitError: Nothing makes the step fit.
        PlanError: There is no plan on the module.
    """
    found = recomputed_module(module, cluster, options)
    if found.module is not module:
        replace_body(module, found.module)
    return found.summary


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A module with what the pass decided."""

    module: mlir.Module
    """The one that was given, if it stays as it is, or a copy; the plan's summary is on it."""
    summary: PlanSummary
    bytes_without_host: float
    """The least that something tried needs that sends nothing to the host."""
    bytes_without: BytesWithout | None = None
    """The same with arguments on the host."""
    rewritten_with: RewrittenWith | None = None
    """See ``DoesNotFitError``; of what sends no values to the host."""
    estimated_seconds: float = inf
    """Seconds of a step by the estimate that led to it; infinite where that knows too little."""


def recomputed_module(
    module: mlir.Module, cluster: Cluster, options: Recompute, costed: Costed | None = None
) -> Recomputed:
    """As ``recompute``; what is rewritten is a copy of the module.

    Args:
        module: Planned.
        cluster: What it is to run on.
        options: Those of the pass.
        costed: The plan on the module and what it costs, if that is known.

    Raises:
        DoesNotFitError: Nothing makes the step fit.
        PlanError: There is no plan on the module.
    """
    limit = memory_limit_of(cluster, options.memory_limit)
    fitted = FittedPlans(module, cluster, options, costed)
    try:
        return fitted.within(limit)
    except DoesNotFitError:
        return fitted.within_least(limit)


class FittedPlans:
    """What one planned module becomes within different limits of memory."""

    def __init__(
        self,
        module: mlir.Module,
        cluster: Cluster,
        options: Recompute,
        costed: Costed | None = None,
        *,
        is_searched: bool = True,
    ) -> None:
        """As of ``recomputed_module``; the limit of the options is not looked at.

        A module that is ``flatten``ed, and whose costs are known, is not read again. They are those
        of a search, ``is_searched``, or those that ``cost_of_module`` finds.
        """
        self._start = time.perf_counter()
        self.module, self.cluster, self.options = module, cluster, options
        self._history = summary_on(module)
        self._is_known, self._is_searched = costed is not None, is_searched
        with module.context, mlir.Location.unknown(), no_collection():
            self._source = bytes_of(module)
            if has_switches(self._source):
                self._before = _copied(module, cluster, options)
                kept = _keep(self._before, cluster, options)
                self._given = Trial(self._before.module, kept)
            else:
                self._before = Trial(module, costed or _cost(module, cluster, options))
                self._given = self._before

    @property
    def peak_bytes(self) -> float:
        """On one device, with nothing decided."""
        return self._given.peak_bytes

    @property
    def step_seconds(self) -> float:
        """With nothing decided."""
        return self._given.step_seconds

    @property
    def is_small(self) -> bool:
        """Is it written far more often than once for each limit?"""
        with self._building():
            return self.copies.most_rungs > 0

    def may_fit(self, limit: float) -> bool:
        """Could it fit so many bytes? By an estimate that lets go all that waits, at no cost."""
        if self.peak_bytes <= limit or not self.options.decides:
            return True
        with self._building():
            if self.copies.has_loops:  # what becomes of their values is decided later
                return True
            least = self.copies.least_bytes(limit, rules_of(self.options))
        return least <= MOST_OFF * limit

    def within(
        self,
        limit: float,
        most_seconds: float = inf,
        most_estimated: float = inf,
        *,
        aim: float | None = None,
    ) -> Recomputed:
        """What fits so many bytes on one device; see ``recomputed_module``.

        What fits as it is, but not what is aimed at, stays so where less memory is not worth it.

        Args:
            limit: Bytes.
            most_seconds: Slower steps are of no use.
            most_estimated: Nor are those that an estimate finds slower than this, as it does for
                another plan of the program.
            aim: Bytes to keep within, if that can be; None: those that are usual.

        Raises:
            DoesNotFitError: Nothing makes the step fit.
            SlowerPlanError: What needs less is too slow before it fits.
        """
        with self._building():
            given = self._given
            if aim is None:
                aim = aim_of(limit, self.options.memory_limit)
            if not self.options.decides or given.peak_bytes <= aim:
                return self._finished(given, limit)
            rules = self._rules
            is_small = self.is_small and bool(rules.besides(self.copies.block))
            trials: Trials | None = {} if is_small else None
            fitting = Fitting(self.copies, aim, limit, most_seconds, trials)
            if given.peak_bytes <= limit:
                fitting.add(given)
            elif fitting.is_estimated_slower(_ways(rules), most_estimated):
                raise SlowerPlanError("another plan of it is faster by an estimate.")
            found = _fit(given, fitting, rules)
            if is_small:  # more is written than estimated: from there, too
                other = Fitting(self.copies, aim, limit, trials=trials)
                _fit(given, other, replace(rules, by_kernels=False))
                fitting.take_better(other)
                found = fitting.best
            if found is None:
                raise self._not_within(fitting, limit)
            if found is given:
                return self._finished(given, limit)
            return self._finished(found, limit, fitting.least_without_host)

    @property
    def _rules(self) -> Rules:
        """What may become of values here."""
        rules = rules_of(self.options)
        return replace(rules, host=rules.host and self.copies.may_send)

    def within_least(self, limit: float) -> Recomputed:
        """The same where ``within`` finds nothing, of what is tried for all limits alike.

        Raises:
            DoesNotFitError: Nothing makes the step fit.
        """
        with self._building():
            if self.peak_bytes <= limit:
                return self._finished(self._given, limit)
            least = LeastMemory(self.copies, limit)
            least.run(_ways(self._rules))
            trial = least.fitting
            if trial is None:
                raise self._not_within(least, limit)
            return self._finished(trial, limit, least.least_without_host)

    def _not_within(self, fitting: Fitting, limit: float) -> DoesNotFitError:
        """The error of a limit, with what was found that needs least."""
        needed = min(self._given.peak_bytes, fitting.least.peak_bytes)
        error = _does_not_fit(self._given, needed, limit, self.options)
        error.largest = _largest(min(self._given, fitting.least, key=lambda one: one.peak_bytes))
        error.bytes_without = WaitingArguments(fitting.least.costed)
        if not self.copies.has_loops:  # of their values estimates know too little
            error.least_without = partial(self._least_with, fitting.least.peak_bytes, limit)
        error.rewritten_with = partial(self._with_arguments, fitting.least)
        return error

    def _least_with(self, peak_bytes: float, limit: float, arguments: Collection[int]) -> float:
        """Bytes of a device with these arguments on the host, and all else let go that waits.

        As much more than that would leave at no cost as what was written needs, ``peak_bytes``.
        """
        live = self.copies.least_live(limit, self._rules)
        more = peak_bytes - live.max(initial=0.0)
        return float((live + self._waiting.change(arguments)).max(initial=0.0)) + more

    @cached_property
    def _waiting(self) -> WaitingArguments:
        return WaitingArguments(self.copies.first.costed)

    def _with_arguments(self, trial: Trial, arguments: Collection[int], limit: float) -> Recomputed:
        """See ``RewrittenWith``.

        Raises:
            DoesNotFitError: It still needs more.
            PlanError: An argument would need a collective on the host.
        """
        with self._building():
            if self._may_fit_with(trial, arguments, limit):
                moved = self._moved(self.copies.first, arguments)
                fitted = FittedPlans(
                    moved.module, self.cluster, self.options, moved.costed, is_searched=False
                )
                try:
                    return fitted.within(limit)
                except DoesNotFitError:
                    pass  # with what was decided without these arguments it may
            moved = self._moved(trial, arguments)
            if moved.peak_bytes <= limit:
                return self._finished(moved, limit)
            error = _does_not_fit(self._given, moved.peak_bytes, limit, self.options)
            error.largest = _largest(moved)
            error.bytes_without = WaitingArguments(moved.costed)
            error.rewritten_with = partial(self._with_arguments, trial)
            raise error

    def _may_fit_with(self, trial: Trial, arguments: Collection[int], limit: float) -> bool:
        """Does what was decided fit so by an estimate, so that as much need not be decided?"""
        if trial.first is None or self.copies.has_loops:
            return True
        without = self._waiting.change(arguments)
        live = trial.first.effect.live + without
        return self.copies.beside + float(live.max(initial=0.0)) <= limit

    def _moved(self, trial: Trial, arguments: Collection[int]) -> Trial:
        """A copy of a written module with these arguments on the host besides."""
        # What a search is written to is written to again by the next one.
        is_first = trial is self.copies.first
        source = self.copies.original if is_first else bytes_of(trial.module)
        copy = parse_bytes(source, self.module.context, "recompute")
        offload_planned(copy, arguments)
        return replace(trial, module=copy, costed=_cost_of_copy(trial.costed, self.options, copy))

    def choice(self, wanted: float, rules: Rules) -> Choice:
        """What is decided so that so many bytes are needed, before it is written."""
        with self._building():
            return self.copies.choice(wanted, rules)

    def estimated_seconds(self, choice: Choice) -> float:
        """Seconds of a step, before it is written; infinite if it needs more than is wanted."""
        answer = choice.effect.answer
        return inf if answer.excess > 0 else self.copies.first.step_seconds + answer.seconds

    def estimated_bytes(self, choice: Choice) -> float:
        """On one device, before it is written."""
        return self.copies.beside + choice.peak_bytes

    def written(self, choice: Choice, wanted: float, rules: Rules) -> Recomputed:
        """A copy rewritten to need so many bytes; it may need more, or less.

        Where it is dearer than estimated it is decided again, as ``within`` does.

        Args:
            choice: What is decided.
            wanted: Bytes on one device.
            rules: What may become of values.
        """
        with self._building():
            fitting = Fitting(self.copies, wanted, wanted)
            fitting.write(choice, wanted, rules)
            decide_again(fitting)
            fitting.improve(rules)
            assert fitting.closest is not None
            return self._finished(fitting.closest, wanted)

    @cached_property
    def copies(self) -> Copies:
        """The module without calls."""
        first = self._given
        if first.module is self.module:
            first = self._before = self._without_calls()
        source = self._source if first.module is self.module else bytes_of(first.module)
        return Copies(first, source, partial(_cost_of_copy, first.costed, self.options))

    def _without_calls(self) -> Trial:
        """The plan on a module without calls, by the estimate of that module."""
        if self._is_known and is_flat(self.module):
            costed = self._given.costed
            if self._is_searched:
                costed = estimated(costed, overlap=self.options.overlap)
            return Trial(self.module, costed)
        return _copied(self.module, self.cluster, self.options)

    @contextmanager
    def _building(self) -> Generator[None]:
        with self.module.context, mlir.Location.unknown(), no_collection():
            yield

    def _finished(
        self, trial: Trial, limit: float, without_host: Trial | None = None
    ) -> Recomputed:
        """With the summary of what was decided.

        Args:
            trial: What was found.
            limit: Bytes on one device.
            without_host: What needs least of all that sends nothing to the host, if that was tried.
        """
        first, estimated = trial.first, inf
        if first is not None and trial.is_alone and not first.question.pairs:
            estimated = self.copies.first.step_seconds + first.effect.answer.seconds
        if first is not None:  # what is written may be finished twice
            trial = replace(trial, recomputed=[*trial.recomputed], decided=[*trial.decided])
            trial.add(first)
        summary = replace(trial.costed.summary, cost_model="bytes")
        if self._history is not None:
            summary = summary.with_history_of(self._history)
        before = self._before.costed.plan.step_seconds
        summary = replace(
            summary,
            overlap=self.options.overlap,
            memory_limit=limit,
            recomputed=tuple(sorted(trial.recomputed, key=lambda row: -row.bytes)),
            decided=tuple(sorted(trial.decided, key=_order)),
            # Both are of estimates of modules: a search may have found other seconds.
            recompute_seconds=max(0.0, trial.costed.plan.step_seconds - before),
            planning_seconds={
                **summary.planning_seconds,
                "recompute": time.perf_counter() - self._start,
            },
        )
        trial.module.operation.attributes[PLAN] = mlir.StringAttr.get(summary.to_json())
        made = Recomputed(
            trial.module, summary, trial.bytes_without_host, estimated_seconds=estimated
        )
        if without_host is None:
            return made
        return replace(
            made,
            bytes_without=WaitingArguments(without_host.costed),
            rewritten_with=partial(self._with_arguments, without_host),
        )


def rules_of(options: Recompute) -> Rules:
    """What may become of values."""
    return Rules(
        again=options.choose == "auto",
        host=options.host_offload,
        keep_sent=not options.mp_comm_recompute,
        keep_parameters=not options.parallel_optimizer_comm_recompute,
    )


def _keep(trial: Trial, cluster: Cluster, options: Recompute) -> Costed:
    """Keep what the switches of marked functions say, in a copy."""
    module, costed, number = trial.module, trial.costed, 0
    while number < len(blocks_of(costed)):
        blocks = [Block(costed, n) for n in range(len(blocks_of(costed)))]
        if keep_in_loops(blocks[number], {one.block: one for one in blocks}):
            costed = _cost(module, cluster, options)
            continue
        keep_marked(blocks[number])
        erase_unread(blocks[number].block)
        costed = _cost(module, cluster, options)
        if keep_gathered(Block(costed, number)):
            costed = _cost(module, cluster, options)
        number += 1
    check_gathers([Block(costed, n) for n in range(len(blocks_of(costed)))])
    return costed


def _copied(module: mlir.Module, cluster: Cluster, options: Recompute) -> Trial:
    """A copy without calls, nor ops that nobody reads: compilers leave these out."""
    copy = parse_bytes(bytes_of(module), module.context, "recompute")
    flatten(copy)
    return Trial(copy, _cost(copy, cluster, options))


def flatten(module: mlir.Module) -> None:
    """Inline calls, and erase what nobody reads, which compilers leave out."""
    with module.context, mlir.Location.unknown():
        inline_calls(module)
        run_native(module, _ERASE_UNREAD, verify=False)


def is_flat(module: mlir.Module) -> bool:
    """Is there nothing left to call?"""
    return len(functions_of(module)) == 1


def _fit(given: Trial, fitting: Fitting, rules: Rules) -> Trial | None:
    """Choose and rewrite until the rewritten module fits by its own estimate.

    What may be computed again or go to the host is also tried with one of both alone: what is
    rewritten may cost more than was expected.

    Args:
        given: The plan as it is known; a search may know one that needs less than its module.
        fitting: The same plan on a module without calls, by the estimate of that module.
        rules: What may become of values.

    Returns:
        What is written; None: nothing makes the step fit.

    Raises:
        SlowerPlanError: What needs less is too slow before it fits.
    """
    without_host = given.peak_bytes
    ways = _ways(rules)
    if len(ways) > 1:
        # First without the host: what is decided with it is of use only if that is faster, and what
        # may go there can lead greedy decisions elsewhere.
        without_host = fitting.try_with(ways[0])
        fitting.try_with(rules, others=True)
        fitting.try_with(replace(rules, again=False), others=True)
    else:
        least = fitting.try_with(rules)
        without_host = without_host if rules.host else least
    fitting.reach(rules)
    decide_again(fitting)
    fitting.let_more_go()
    fitting.try_less(rules)
    if len(ways) > 1:
        fitting.try_less(ways[0])
    for way in ways:
        fitting.improve(way, 1 / len(ways))
    if fitting.best is None and fitting.is_beaten:
        raise SlowerPlanError("no plan is faster than one that is known.")
    if fitting.best is not None:
        fitting.best.bytes_without_host = without_host
    return fitting.best


def _ways(rules: Rules) -> list[Rules]:
    """What may become of values: also without the host, where both may."""
    both = rules.again and rules.host
    return [replace(rules, host=False), rules] if both else [rules]


def _order(row: DecidedValue) -> tuple[bool, float]:
    """What was let go first, most bytes first; then what is kept, the cheapest first."""
    is_kept = row.decision == "keep"
    return is_kept, row.seconds if is_kept else -row.bytes


def _cost(module: mlir.Module, cluster: Cluster, options: Recompute) -> Costed:
    return cost_of_module(module, cluster, overlap=options.overlap, trip_count=options.trip_count)


def _cost_of_copy(first: Costed, options: Recompute, copy: mlir.Module) -> Costed:
    """What the plan on a rewritten copy of a module costs."""
    return cost_of_module(
        copy,
        first.cluster,
        overlap=options.overlap,
        trip_count=options.trip_count,
        rules=first.imported.rules,
    )


def _largest(trial: Trial) -> str:
    """The largest tensors at its worst moment."""
    return tensors_text(peak_values(trial.costed.imported, trial.costed.plan.peak_values, {}))


def _does_not_fit(given: Trial, needed: float, limit: float, options: Recompute) -> DoesNotFitError:
    """With the best that was found, and what is at the peak without it."""
    switches = [
        f"{name}=true"
        for name, value in (
            ("mp-comm-recompute", options.mp_comm_recompute),
            ("parallel-optimizer-comm-recompute", options.parallel_optimizer_comm_recompute),
        )
        if not value
    ]
    more = f" give {' and '.join(switches)}," if switches else ""
    ways = ["computing values again"] * (options.choose == "auto")
    ways += [
        "sending them to the host" if ways else "sending values to the host"
    ] * options.host_offload
    tried = ways[0] + " does not make" if len(ways) == 1 else f"{' and '.join(ways)} do not make"
    return DoesNotFitError(
        f"{tried} this plan fit: it still needs"
        f" {bytes_text(needed)} on each of {given.costed.imported.mesh.size} devices,"
        f" {bytes_text(needed - limit)} more than the {bytes_text(limit)} allowed; without, it"
        f" needs {bytes_text(given.peak_bytes)}. Largest tensors at its"
        f" peak, on one device: {_largest(given)}. Plan for less memory,{more} use more chips"
        " or a smaller batch.",
        None,
        needed,
        limit,
    )
