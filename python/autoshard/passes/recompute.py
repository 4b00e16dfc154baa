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
        ..
        %b:2 = stablehlo.optimization_barrier %m, %dy
        %h2 = stablehlo.custom_call @annotate_device_placement(%b#0) {.. = "device"}
        %g = stablehlo.multiply %b#1, %h2

Copies and moves have the attributes of their originals, so that the plan stays.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import inf, isinf
from typing import ClassVar, Literal

import numpy as np

from autoshard.cluster import Cluster
from autoshard.errors import DoesNotFitError, PassOptionError
from autoshard.ir import mlir, parse_bytes
from autoshard.ir.attributes import PLAN
from autoshard.ir.boundary import main_function
from autoshard.ir.garbage import no_collection
from autoshard.ir.inline import bytes_of, inline_calls, replace_body
from autoshard.passes.base import Pass
from autoshard.passes.memory_limit import MEMORY_MARGIN, memory_limit_of, read_bytes_text
from autoshard.planned.given_plan import Costed, cluster_for, cost_of_module, summary_on
from autoshard.planned.summarize import peak_values
from autoshard.planned.summary import (
    DecidedValue,
    PlanSummary,
    RecomputedValue,
    bytes_text,
    tensors_text,
)
from autoshard.rewrites.recomputation.block import Block, blocks_of, erase_unread
from autoshard.rewrites.recomputation.choice import Choice, choose, decided, recomputed
from autoshard.rewrites.recomputation.decision import Fate, changed
from autoshard.rewrites.recomputation.kept import check_gathers, keep_gathered, keep_in_loops
from autoshard.rewrites.recomputation.marks import has_switches, keep_marked
from autoshard.rewrites.recomputation.question import (
    Rules,
    live_on_device,
    points_outside_loops,
)
from autoshard.rewrites.recomputation.write import write_choice

_ROUNDS = 5
"""How often values are chosen: the rewritten module may need more than expected, or less."""

_MOST_STACKS = 8
"""How often stacks of a block are chosen again, for what became of others."""

_ESTIMATE_ERROR = 0.02
"""By which share of a step an estimate of what is rewritten may be wrong.

The planned steps of bench/speed/recompute_speed.py are the same with 0 and 10% (2026-11-26).
"""

_MOST_OPS_COSTED = 1_500
"""Ops of all modules that are rewritten to change single decisions, at most: a step of 50 ops is
rewritten 30 times, in half a second; one of 1,500 not at all."""

_CLOSE = 0.02
"""A peak below what is aimed at by this share of it is good enough."""


@dataclass(frozen=True)
class Recompute(Pass):
    """Compute values again instead of keeping them, so that a planned module fits the memory.

    Or send them to the host and back, where it is told to. The cheapest set that is found. A module
    that fits stays as it is.
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
    fits_without_host: bool
    """Was it possible with nothing sent to the host?"""


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
    start = time.perf_counter()
    limit = memory_limit_of(cluster, options.memory_limit)
    with module.context, mlir.Location.unknown(), no_collection():
        if has_switches(module):
            before = _copied(module, cluster, options)
            given = _Trial(before.module, _keep(before, cluster, options))
        else:
            given = before = _Trial(module, costed or _cost(module, cluster, options))
        trial = given
        if options.decides and given.peak_bytes > limit:
            first = given
            if first.module is module:
                first = before = _copied(module, cluster, options)
            trial = _fit(given, first, cluster, options, limit)
            if trial.first is not None:
                trial.add(trial.first)
        history = summary_on(module)
        summary = replace(trial.costed.summary, cost_model="bytes")
        if history is not None:
            summary = summary.with_history_of(history)
        summary = replace(
            summary,
            overlap=options.overlap,
            memory_limit=limit,
            recomputed=tuple(sorted(trial.recomputed, key=lambda row: -row.bytes)),
            decided=tuple(sorted(trial.decided, key=_order)),
            # Both are of estimates of modules: a search may have found other seconds.
            recompute_seconds=max(
                0.0, trial.costed.plan.step_seconds - before.costed.plan.step_seconds
            ),
            planning_seconds={
                **summary.planning_seconds,
                "recompute": time.perf_counter() - start,
            },
        )
        trial.module.operation.attributes[PLAN] = mlir.StringAttr.get(summary.to_json())
    return Recomputed(trial.module, summary, trial.fits_without_host)


def _keep(trial: _Trial, cluster: Cluster, options: Recompute) -> Costed:
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


@dataclass
class _Trial:
    """A rewritten module, and what its plan costs."""

    module: mlir.Module
    costed: Costed
    recomputed: list[RecomputedValue] = field(default_factory=list[RecomputedValue])
    decided: list[DecidedValue] = field(default_factory=list[DecidedValue])

    fits_without_host: bool = True
    first: Choice | None = None
    """What was decided in the module that this is a copy of."""

    def add(self, choice: Choice) -> None:
        """Tell what was decided in this module, before it is written."""
        self.recomputed += recomputed(choice)
        self.decided += decided(choice)

    @property
    def peak_bytes(self) -> float:
        """See ``Costed.peak_bytes``."""
        return self.costed.peak_bytes

    @property
    def step_seconds(self) -> float:
        """See ``Costed.step_seconds``."""
        return self.costed.step_seconds

    def rank(self, aim: float) -> tuple[bool, float]:
        """Smaller is better: by seconds what keeps within ``aim``, else by bytes times seconds."""
        peak = self.peak_bytes
        return peak > aim, self.step_seconds * max(peak, aim)


def _copied(module: mlir.Module, cluster: Cluster, options: Recompute) -> _Trial:
    """A copy without calls, nor ops that nobody reads: compilers leave these out."""
    copy = parse_bytes(bytes_of(module), module.context, "recompute")
    inline_calls(copy)
    erase_unread(main_function(copy).regions[0].blocks[0])
    return _Trial(copy, _cost(copy, cluster, options))


def _fit(
    given: _Trial, first: _Trial, cluster: Cluster, options: Recompute, limit: float
) -> _Trial:
    """Choose and rewrite until the rewritten module fits by its own estimate.

    What may be computed again or go to the host is also tried with one of both alone: what is
    rewritten may cost more than was expected.

    Args:
        given: The plan as it is known; a search may know one that needs less than its module.
        first: The same plan on a module without calls, by the estimate of that module.
        cluster: What it is to run on.
        options: Those of the pass.
        limit: Bytes on one device.

    Raises:
        DoesNotFitError: Nothing makes the step fit.
    """
    fitting = _Fitting(first, cluster, options, limit)
    rules = Rules(
        again=options.choose == "auto",
        host=options.host_offload,
        keep_sent=not options.mp_comm_recompute,
        keep_parameters=not options.parallel_optimizer_comm_recompute,
    )
    fits_without_host = fitting.try_with(rules) and not rules.host
    if rules.again and rules.host:
        # What would be decided without the host is what was decided, where nothing goes there.
        without_host, host_alone = replace(rules, host=False), replace(rules, again=False)
        fits_without_host = fitting.is_without_host or fitting.try_with(without_host, others=True)
        fitting.try_with(host_alone, others=True)
    fitting.improve(rules)
    if fitting.best is None:
        needed = min(given.peak_bytes, fitting.least_bytes)
        raise _does_not_fit(given, needed, limit, options)
    fitting.best.fits_without_host = fits_without_host
    return fitting.best


class _Fitting:
    """The best of several rewritten copies of a module."""

    def __init__(self, first: _Trial, cluster: Cluster, options: Recompute, limit: float) -> None:
        """``first`` is not rewritten."""
        self.first, self.original = first, bytes_of(first.module)
        self.block = Block(first.costed)
        self.without = first.peak_bytes
        live = float(live_on_device(self.block).max(initial=0.0))
        self.beside = max(0.0, self.without - live)
        """Bytes at the peak that are no values' of ``main``."""
        self.cluster, self.options = cluster, options
        self.limit = limit
        self.least_bytes = self.without
        """The least that something tried needs."""
        # The margin that a chip's own limit has is left free of a given one, too, if that can be.
        self.aim = limit * (1 - MEMORY_MARGIN) if options.memory_limit else limit
        self.best: _Trial | None = None
        self.closest: _Trial | None = None
        """The best of all, those that do not fit included."""
        self._choices: dict[tuple[float, Rules], Choice] = {}
        self._outside = points_outside_loops(self.block)

    def try_with(self, rules: Rules, *, others: bool = False) -> bool:
        """Rewrite the module, several times: it may need more than was expected, or less.

        Args:
            rules: What may become of values.
            others: Others that allow more were tried: these are given up where what is written
                does not fit and is worse than the best in bytes and in seconds.

        Returns:
            Does it fit so? As rewritten; by an estimate where that is too slow to be written.
        """
        aim = wanted = self.aim
        seen: set[tuple[float, float]] = set()
        fits = False
        for _ in range(_ROUNDS):
            choice = self._choice(wanted, rules)
            if self._cannot_win(choice):
                return fits or choice.effect.answer.excess <= 0
            trial, is_stuck = self._rewritten(choice, wanted, rules)
            peak = trial.peak_bytes
            known = (peak, trial.step_seconds)
            is_worse = others and peak > self.limit and self._is_worse(trial)
            self._add(trial)
            if is_worse:
                break
            fits = fits or peak <= self.limit
            if (1 - _CLOSE) * aim < peak <= aim or (known in seen and peak <= aim):
                break
            seen.add(known)
            if peak > aim and is_stuck:  # nothing is left to choose
                if fits or aim == self.limit or self._keeps_to_aim():
                    break  # what needs more than is aimed at loses to what does not
                aim = wanted = self.limit  # where less is asked for, other values are chosen
                continue
            before, wanted = wanted, wanted + aim - peak - _CLOSE / 2 * aim
            if fits and peak <= aim and wanted >= self.without:
                wanted = (before + self.without) / 2
        return fits

    def improve(self, rules: Rules) -> None:
        """Change decisions about ``main`` one at a time, as long as that is better as rewritten.

        Estimates of small programs are off by more than what decisions differ in.
        """
        left = _MOST_OPS_COSTED // self.first.costed.imported.program.num_ops
        tried: list[tuple[dict[int, Fate], dict[int, Fate]]] = []
        while (now := self.best or self.closest) is not None and now.first is not None:
            choice = now.first
            for changes in _changes(choice):
                if left <= 0:
                    return
                if (changes, choice.question.apart) in tried:
                    continue
                tried.append((changes, choice.question.apart))
                effect = choice.question.effect(changes)
                if isinf(effect.answer.seconds):
                    continue
                left -= 1
                other = replace(choice, chosen=changes, effect=effect)
                self._add(self._rewritten(other, self.aim, rules)[0])
            if (self.best or self.closest) is now:
                return

    def _add(self, trial: _Trial) -> None:
        self.least_bytes = min(self.least_bytes, trial.peak_bytes)
        if self.closest is None or trial.rank(self.aim) < self.closest.rank(self.aim):
            self.closest = trial
        if trial.peak_bytes > self.limit:
            return
        if self.best is None or trial.rank(self.aim) < self.best.rank(self.aim):
            self.best = trial

    def _is_worse(self, trial: _Trial) -> bool:
        """Is it worse than the best of all in bytes and in seconds?"""
        best = self.closest
        return best is not None and (
            trial.peak_bytes > best.peak_bytes and trial.step_seconds > best.step_seconds
        )

    @property
    def is_without_host(self) -> bool:
        """Is the best that was found within what is aimed at, and sends nothing to the host?"""
        best = self.best
        if best is None or best.first is None or not self._keeps_to_aim():
            return False
        others = any(row.decision == Fate.HOST.value for row in best.decided)
        return not (best.first.sends or others)

    def _cannot_win(self, choice: Choice) -> bool:
        """Is what was decided for ``main`` worse than the best, as far as estimates tell?"""
        best, answer = self.best, choice.effect.answer
        if best is None or not self._keeps_to_aim():
            return False
        question = choice.question
        if not question.pairs and self._is_short(choice.effect.live, question.limit):
            return True
        return answer.seconds > self._most_seconds()

    def _most_seconds(self) -> float:
        """What decisions may add to a step that are of use, as far as estimates tell."""
        if self.best is None or not self._keeps_to_aim():
            return inf
        return (1 + _ESTIMATE_ERROR) * self.best.step_seconds - self.first.step_seconds

    def _keeps_to_aim(self) -> bool:
        """Does the best that was found keep within what is aimed at?"""
        return self.best is not None and self.best.peak_bytes <= self.aim

    def _is_short(self, live: np.ndarray, limit: float) -> bool:
        """Is memory short at a point outside of loops, whose blocks are decided later?"""
        return bool(np.any(live[self._outside] > limit))

    def _choice(self, wanted: float, rules: Rules) -> Choice:
        """What is decided for ``main`` so that so many bytes are needed."""
        if (wanted, rules) not in self._choices:
            self._choices[wanted, rules] = choose(
                self.block,
                wanted - self.beside,
                rules,
                is_useless=self._is_short if self._keeps_to_aim() else None,
                # Without the host, all is asked for: whether it fits.
                most_seconds=self._most_seconds() if rules.host else inf,
            )
        return self._choices[wanted, rules]

    def _rewritten(self, choice: Choice, wanted: float, rules: Rules) -> tuple[_Trial, bool]:
        """A copy rewritten to need so many bytes; is there nothing left to choose?"""
        limit = wanted - self.beside
        copy = parse_bytes(self.original, self.first.module.context, "recompute")
        if choice.chosen:
            trial = _Trial(copy, write_choice(choice, lambda: self._cost(copy), copy))
        else:
            trial = _Trial(copy, self._cost(copy))
        trial.first = choice
        # main first: what is dropped there is computed again once, in a loop in each trip
        if not self._decide_stacks(choice, trial, limit, rules):
            return trial, False
        beside: Block | None = None
        for number in range(1, len(blocks_of(trial.costed))):
            if beside is not None and beside.costed is not trial.costed:
                beside = None
            block = Block(trial.costed, number, beside)
            beside = beside or block
            choice = choose(block, limit, rules)
            trial.add(choice)
            if choice.chosen:
                trial.costed = write_choice(choice, lambda: self._cost(copy))
            if not self._decide_stacks(choice, trial, limit, rules):
                return trial, False
        return trial, True

    def _decide_stacks(self, choice: Choice, trial: _Trial, limit: float, rules: Rules) -> bool:
        """Decide for the stacks of a block again, after the first choice for all of the block.

        Stacks are asked for until nothing more of them helps: what a compiler stores for the
        copies, as converted stacks, is only known when they are written.

        Returns:
            Is memory short, and nothing left to choose?
        """
        is_short = choice.effect.answer.excess > 0
        for _ in range(_MOST_STACKS):
            if not (choice.chosen and choice.question.pairs):  # without loops there are no stacks
                break
            block = Block(trial.costed, choice.question.block.number)
            choice = choose(block, limit, rules, stacks_alone=True)
            is_short = is_short and choice.effect.answer.excess > 0
            if choice.chosen:
                trial.add(choice)
                trial.costed = write_choice(choice, lambda: self._cost(trial.module))
        return is_short

    def _cost(self, module: mlir.Module) -> Costed:
        return _cost(module, self.cluster, self.options)


def _changes(choice: Choice) -> Iterator[dict[int, Fate]]:
    """Decisions that differ from these in one."""
    for item, fates in enumerate(choice.question.fates):
        for fate in (Fate.KEEP, *fates):
            if choice.chosen.get(item, Fate.KEEP) is not fate:
                yield changed(choice.chosen, [(item, fate)])


def _order(row: DecidedValue) -> tuple[bool, float]:
    """What was let go first, most bytes first; then what is kept, the cheapest first."""
    is_kept = row.decision == "keep"
    return is_kept, row.seconds if is_kept else -row.bytes


def _cost(module: mlir.Module, cluster: Cluster, options: Recompute) -> Costed:
    return cost_of_module(module, cluster, overlap=options.overlap, trip_count=options.trip_count)


def _does_not_fit(
    given: _Trial, needed: float, limit: float, options: Recompute
) -> DoesNotFitError:
    """With the best that was found, and what is at the peak without it."""
    imported, plan = given.costed.imported, given.costed.plan
    largest = peak_values(imported, plan.peak_values, {})
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
        f" {bytes_text(needed)} on each of {imported.mesh.size} devices,"
        f" {bytes_text(needed - limit)} more than the {bytes_text(limit)} allowed; without, it"
        f" needs {bytes_text(given.peak_bytes)}. Largest tensors at its"
        f" peak, on one device: {tensors_text(largest)}. Plan for less memory,{more} use more chips"
        " or a smaller batch.",
        None,
        needed,
        limit,
    )
