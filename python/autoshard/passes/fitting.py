"""Rewritten copies of a planned module, to make its step fit the memory.

What is to become of values is decided by estimates; what a rewritten copy needs, and how long its
step is, is known when it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isinf

import numpy as np

from autoshard.ir import mlir, parse_bytes
from autoshard.passes.bracket import Bracket
from autoshard.passes.memory_limit import WITHIN_REACH
from autoshard.planned.given_plan import Costed
from autoshard.planned.summary import DecidedValue, RecomputedValue
from autoshard.rewrites.recomputation.block import Block, blocks_of
from autoshard.rewrites.recomputation.choice import (
    Choice,
    Written,
    choose,
    choose_more,
    decided,
    recomputed,
)
from autoshard.rewrites.recomputation.decision import Fate, changed
from autoshard.rewrites.recomputation.question import (
    BlockQuestion,
    Dearer,
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

_LESS = 0.7
"""Share of the bytes of the best plan within which another one is decided that lets more go.

Llama 2 7B on v5p:2x2x4 within 75% and ViT-L on v5e:4x4 within 50% of their memory are 0.915 and
0.402 s, without 0.950 and 0.408; with half of the bytes 0.930 and 0.414 (2026-11-27).
"""

MOST_OFF = 1.1
"""How much less than estimated a rewritten module may need, at most."""

_WITHIN_REACH = 1.1
"""What needs more than so many times the limit will not fit either if less is asked for."""

_MOST_REACHES = 3
"""How often much less is asked for where nothing fits.

ResNet-50 on v5e:4x4 within 50% of its memory is planned in 0.43 of it, and was refused without.
"""

_MOST_OPS_COSTED = 1_500
"""Ops of all modules that are rewritten for smaller limits, at most."""

_MOST_OPS_IMPROVED = 3_000
"""Ops of all modules that are rewritten to change single decisions, at most: a step of 50 ops is
rewritten 60 times, in half a second; one of 3,000 not at all."""

_LEAST_GAIN = 0.002
"""Share of a step that is not worth another rewritten module."""

_LEAST_RUNG = 0.3
"""Share of what a module needs as it is down to which decisions are tried for all limits alike."""

_MOST_RUNGS = 12
"""Limits from there on, each the same part of the one before, at most."""

_CLOSE = 0.02
"""A peak below what is aimed at by this share of it is good enough."""


@dataclass
class Trial:
    """A rewritten module, and what its plan costs."""

    module: mlir.Module
    costed: Costed
    recomputed: list[RecomputedValue] = field(default_factory=list[RecomputedValue])
    decided: list[DecidedValue] = field(default_factory=list[DecidedValue])

    bytes_without_host: float = 0.0
    """The least that something tried needs that sends nothing to the host."""
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

    @property
    def is_alone(self) -> bool:
        """Was nothing decided about other blocks than the one of ``first``?"""
        return all(row.decision == Fate.KEEP.value for row in self.decided)

    @property
    def sends(self) -> bool:
        """Does anything that was decided go to the host?"""
        others = any(row.decision == Fate.HOST.value for row in self.decided)
        return others or (self.first is not None and self.first.sends)

    def rank(self, aim: float, limit: float) -> tuple[bool, float]:
        """Smaller is better: what keeps within ``limit``; by seconds up to ``aim``, above it by
        bytes times seconds: the margin between both may cost as much as it is."""
        peak = self.peak_bytes
        return peak > limit, self.step_seconds * max(peak, aim)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rewritten module needs."""

    peak_bytes: float
    step_seconds: float


@dataclass(frozen=True, slots=True)
class _Known:
    """What was written for decisions about ``main``."""

    outcome: Outcome
    wanted: float
    """Bytes on one device."""
    is_alone: bool
    """Was nothing decided about other blocks? Then nothing is within more bytes."""


class Copies:
    """A planned module without calls, of which rewritten copies are made."""

    def __init__(
        self, first: Trial, original: bytes, cost: Callable[[mlir.Module], Costed]
    ) -> None:
        """Read the module.

        Args:
            first: It is not rewritten.
            original: The same as bytecode.
            cost: What the plan on a copy costs.
        """
        self.first, self.original, self.cost = first, original, cost
        self.block = Block(first.costed)
        self._blocks: dict[int, Block] = {}
        self._least_live: dict[tuple[float, Rules], np.ndarray] = {}
        self.without = first.peak_bytes
        """Bytes that it needs as it is."""
        live = float(live_on_device(self.block).max(initial=0.0))
        self.beside = max(0.0, self.without - live)
        """Bytes at the peak that are no values' of ``main``."""
        self.outside = points_outside_loops(self.block)
        self.has_loops = len(self.block.costs.blocks.blocks) > 1
        compiler = first.costed.cluster.compiler
        self.may_send = self.has_loops or not compiler.does("schedule.fetches_at_once")
        """Is there a value that the compiler would let be on the host for a while?"""

    @property
    def most_rungs(self) -> int:
        """Bytes that decisions are tried for: few or none of large programs."""
        num_ops = self.first.costed.imported.program.num_ops
        return min(_MOST_RUNGS, _MOST_OPS_COSTED // max(1, num_ops))

    def choice(
        self,
        wanted: float,
        rules: Rules,
        *,
        is_useless: Callable[[np.ndarray, float], bool] | None = None,
        most_seconds: float = inf,
        dearer: Dearer | None = None,
    ) -> Choice:
        """What is decided for ``main`` so that so many bytes are needed; see ``choose``."""
        return choose(
            self.block,
            wanted - self.beside,
            rules,
            is_useless=is_useless,
            most_seconds=most_seconds,
            dearer=dearer,
        )

    def least_bytes(self, limit: float, rules: Rules) -> float:
        """What it needs at least, if all that waits while more is in use goes at no cost."""
        return float(self.least_live(limit, rules).max(initial=0.0))

    def least_live(self, limit: float, rules: Rules) -> np.ndarray:
        """The same at each point."""
        if (limit, rules) not in self._least_live:
            question = BlockQuestion(self.block, limit - self.beside, rules)
            self._least_live[limit, rules] = self.beside + question.least_live(())
        return self._least_live[limit, rules]

    def rewritten(self, choice: Choice, wanted: float, rules: Rules) -> tuple[Trial, bool]:
        """A copy rewritten to need so many bytes; is there nothing left to choose?"""
        limit = wanted - self.beside
        copy = parse_bytes(self.original, self.first.module.context, "recompute")
        # Until it is rewritten, what is decided is read of the first module.
        trial = Trial(copy, self.first.costed)
        self._write(choice, trial)
        trial.first = choice
        # main first: what is dropped there is computed again once, in a loop in each trip
        if not self._decide_stacks(choice, trial, limit, rules):
            return self._costed(trial), False
        if not self.has_loops:
            return self._costed(trial), True
        beside: Block | None = None
        for number in range(1, len(blocks_of(trial.costed))):
            if beside is not None and beside.costed is not trial.costed:
                beside = None
            block = self._block(trial, number, beside)
            beside = beside or block
            choice = choose(block, limit, rules)
            trial.add(choice)
            self._write(choice, trial)
            if not self._decide_stacks(choice, trial, limit, rules):
                return self._costed(trial), False
        return self._costed(trial), True

    def _block(self, trial: Trial, number: int, beside: Block | None) -> Block:
        """A block of a module; those of the first one are read once."""
        if trial.costed is not self.first.costed:
            return Block(trial.costed, number, beside)
        if number not in self._blocks:
            self._blocks[number] = Block(trial.costed, number, self.block)
        return self._blocks[number]

    def _write(self, choice: Choice, trial: Trial) -> None:
        """Rewrite a copy as decided, if something goes."""
        if not choice.chosen:
            return
        is_first = trial.costed is self.first.costed
        copy = trial.module if is_first else None
        trial.costed = write_choice(choice, lambda: self.cost(trial.module), copy)

    def _costed(self, trial: Trial) -> Trial:
        """With the costs of its own module, if nothing was written."""
        if trial.costed is self.first.costed:
            trial.costed = self.cost(trial.module)
        return trial

    def _decide_stacks(self, choice: Choice, trial: Trial, limit: float, rules: Rules) -> bool:
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
                trial.costed = write_choice(choice, lambda: self.cost(trial.module))
        return is_short


Trials = dict[Written, Trial]
"""What was written, by what was decided for it."""


class Fitting:
    """The best of several rewritten copies of a module."""

    def __init__(
        self,
        copies: Copies,
        aim: float,
        limit: float,
        most_seconds: float = inf,
        trials: Trials | None = None,
    ) -> None:
        """Nothing is tried yet.

        Args:
            copies: The module.
            aim: Bytes on one device to keep within, if that can be.
            limit: Bytes on one device.
            most_seconds: Slower steps are of no use.
            trials: What is among these is not written again, and what is written is added. None:
                nothing is kept, nor is it where there are loops.
        """
        self.copies = copies
        self.aim, self.limit, self.most_seconds = aim, limit, most_seconds
        self.least = copies.first
        """What needs the least bytes of all that was tried, the module itself included."""
        self.least_without_host = copies.first
        """The same of what sends nothing to the host."""
        self.best: Trial | None = None
        self.closest: Trial | None = None
        """The best of all, those that do not fit included."""
        self._closest_without_host: Trial | None = None
        self._more_than_estimated = inf
        """Bytes by which what was written needs more than estimated, at least."""
        self._choices: dict[tuple[float, Rules], Choice] = {}
        self._known: dict[tuple[Rules | None, Written], _Known] = {}
        """What was written, by the rules for values of loops, if these are decided, and what was
        decided for ``main``."""
        self._keeps = trials is not None and not copies.has_loops
        self._trials = trials if self._keeps and trials is not None else {}

    def write(self, choice: Choice, wanted: float, rules: Rules) -> Outcome:
        """Rewrite the module once, as decided; what it needs."""
        return self._write(choice, wanted, rules)[0]

    def _write(self, choice: Choice, wanted: float, rules: Rules) -> tuple[Outcome, bool]:
        """Rewrite the module, if that was not done; is there nothing left to choose?"""
        is_short = choice.effect.answer.excess > 0
        # What suffices is all that is written, unless loops stack something for each other.
        is_all = not self.copies.has_loops or not (is_short or choice.question.pairs)
        written = None if is_all else rules, choice.written
        known = self._known.get(written)
        if known is not None and (
            is_all or (known.is_alone and wanted >= known.wanted and not is_short)
        ):
            return known.outcome, is_short
        if choice.written in self._trials:
            trial, is_stuck = self._trials[choice.written], is_short
        else:
            trial, is_stuck = self.copies.rewritten(choice, wanted, rules)
            if self._keeps:
                self._trials[choice.written] = trial
        outcome = Outcome(trial.peak_bytes, trial.step_seconds)
        self._known[written] = _Known(outcome, wanted, trial.is_alone)
        self.add(trial)
        return outcome, is_stuck

    def is_estimated_slower(self, ways: Sequence[Rules], seconds: float) -> bool:
        """Do estimates find that it fits in each way, but with a step no shorter than this?

        Of what loops stack for each other estimates know little.
        """
        if isinf(seconds):
            return False
        for rules in ways:
            choice = self.choice(self.aim, rules, self._most_seconds())
            answer = choice.effect.answer
            if choice.question.pairs or answer.excess > 0:
                return False
            if self.copies.first.step_seconds + answer.seconds < seconds:
                return False
        return True

    def try_with(self, rules: Rules, *, others: bool = False) -> float:
        """Rewrite the module, several times: it may need more than was expected, or less.

        Args:
            rules: What may become of values.
            others: Others that allow more were tried: these are given up where what is written
                does not fit and is worse in bytes and in seconds than what fits, or than what
                comes closest to it.

        Returns:
            The least bytes that it needs so. As rewritten; by an estimate where that is too slow to
            be written.
        """
        if others and self._is_hopeless(self.copies.least_bytes(self.limit, rules)):
            return inf
        aim = wanted = self.aim
        seen: set[Outcome] = set()
        tried = Bracket()
        least = inf
        for _ in range(_ROUNDS):
            choice = self.choice(wanted, rules, self._most_seconds(others))
            if self._cannot_win(choice, is_first=not seen, others=others):
                return min(least, self.copies.beside + choice.peak_bytes)
            known = self.best or self.closest
            outcome, is_stuck = self._write(choice, wanted, rules)
            peak = outcome.peak_bytes
            least = min(least, peak)
            if others and peak > self.limit and known is not None and _is_worse(outcome, known):
                break
            fits = least <= self.limit
            more = peak - self.copies.beside - choice.peak_bytes
            self._more_than_estimated = min(more, self._more_than_estimated)
            if self.is_beaten or self._is_hopeless(self.copies.beside + choice.least_bytes):
                break
            if (1 - _CLOSE) * aim < peak <= aim or (outcome in seen and peak <= aim):
                break
            seen.add(outcome)
            if peak > aim and is_stuck:  # nothing is left to choose
                if fits or aim == self.limit or self._keeps_to_aim():
                    break  # what needs more than is aimed at loses to what does not
                if least > _WITHIN_REACH * self.limit and not self.copies.has_loops:
                    break  # with less to go what goes first relieves no more
                aim = wanted = self.limit  # where less is asked for, other values are chosen
                continue
            tried.add(wanted, choice, aim - peak)
            if tried.gain <= _LEAST_GAIN * self.copies.first.step_seconds:
                break
            before, wanted = wanted, wanted + aim - peak - _CLOSE / 2 * aim
            if fits and peak <= aim and wanted >= self.copies.without:
                wanted = (before + self.copies.without) / 2
            wanted = tried.inside(wanted)
        return least

    def let_more_go(self) -> None:
        """Let more go than has to, once, if that may make the step shorter.

        What is computed again where it is read may be stored nowhere, of which estimates know
        nothing. Where the best is much cheaper than estimated for that, more may pay as well.
        """
        now, before = self.best, self.copies.first.step_seconds
        if now is None or now.first is None:
            return
        estimated = before + now.first.effect.answer.seconds
        if now.step_seconds >= estimated - _ESTIMATE_ERROR * before:
            return
        wanted, rules = _LESS * now.peak_bytes, now.first.question.rules
        if now.first.question.pairs:
            choice = self.copies.choice(wanted, rules, is_useless=_is_short)
        else:
            choice = choose_more(now.first, wanted - self.copies.beside)
        if choice.effect.answer.excess <= 0:
            self._write(choice, wanted, rules)

    def improve(self, rules: Rules, share: float = 1.0) -> None:
        """Change decisions about ``main`` one at a time, as long as that is better as rewritten.

        Estimates of small programs are off by more than what decisions differ in.

        Args:
            rules: What may become of values.
            share: Part of the copies that may be written for this.
        """
        left = self.copies_left(share)
        tried: list[tuple[dict[int, Fate], dict[int, Fate]]] = []
        while (now := self._newest(rules)) is not None and now.first is not None:
            if self.is_beaten:
                return
            choice = now.first
            for changes in _changes(choice):
                if left <= 0:
                    return
                if (changes, choice.question.apart) in tried:
                    continue
                if not rules.host and Fate.HOST in changes.values():
                    continue
                tried.append((changes, choice.question.apart))
                effect = choice.question.effect(changes)
                if isinf(effect.answer.seconds):
                    continue
                left -= 1
                other = replace(choice, chosen=changes, effect=effect)
                self._write(other, self.aim, rules)
            if self._newest(rules) is now:
                return

    def copies_left(self, share: float) -> int:
        """Copies that may be written to change single decisions, of all that may be this part."""
        return int(share * _MOST_OPS_IMPROVED) // self.copies.first.costed.imported.program.num_ops

    def reach(self, rules: Rules) -> None:
        """Where nothing fits but comes close, decide for much less: other values go then.

        What becomes of values of loops changes with each limit, so that all smaller ones are tried.
        """
        limits = [self.limit * _LESS**time for time in range(1, _MOST_REACHES + 1)]
        if self.copies.has_loops:
            limits = self._rungs(_MOST_RUNGS, self.limit)
        least = inf
        for wanted in limits:
            if self.best is not None or self.least.peak_bytes > _WITHIN_REACH * self.limit:
                return
            if self.is_beaten:
                return
            if self.least.peak_bytes == least and not self.copies.has_loops:
                return  # nor does it help to ask for less still
            least = self.least.peak_bytes
            self._write(self.choice(wanted, rules), wanted, rules)

    def try_less(self, rules: Rules) -> None:
        """Decide for less memory as well, where a program is small.

        A plan found for less than is aimed at may be faster than that which is found for it. Bytes
        are parts of what the module needs as it is, the same ones for all limits, so that what a
        smaller limit finds here a larger one finds, too.
        """
        is_far = self.best is None and self.least.peak_bytes > _WITHIN_REACH * self.limit
        if is_far and self.copies.has_loops:
            return  # ``LeastMemory`` tries less for them
        for wanted in self._rungs(self.copies.most_rungs, self.aim):
            most_seconds = self._most_seconds() if rules.host else inf
            choice = self.choice(wanted, rules, most_seconds)
            if choice.effect.answer.excess > 0 and not self.copies.has_loops:
                return
            self._write(choice, wanted, rules)

    def _rungs(self, count: int, below: float) -> list[float]:
        """So many bytes that decisions are tried for, those of them that are less than these."""
        parts = [_LEAST_RUNG ** (rung / count) for rung in range(1, count + 1)]
        return [part * self.copies.without for part in parts if part * self.copies.without < below]

    @property
    def is_beaten(self) -> bool:
        """Does nothing fit, and is what comes closest too slow? What needs less is not faster."""
        is_slow = self.least.step_seconds >= self.most_seconds
        return self.best is None and is_slow and self.least is not self.copies.first

    def _newest(self, rules: Rules) -> Trial | None:
        """The best of all that rules allow, or what comes closest to it."""
        return self.best or self.closest if rules.host else self._closest_without_host

    def add(self, trial: Trial) -> None:
        """A rewritten module, which may be better than the best."""
        if trial.peak_bytes < self.least.peak_bytes:
            self.least = trial
        if not trial.sends and trial.peak_bytes < self.least_without_host.peak_bytes:
            self.least_without_host = trial
        if self.closest is None or self._is_better(trial, self.closest):
            self.closest = trial
        last = self._closest_without_host
        if not trial.sends and (last is None or self._is_better(trial, last)):
            self._closest_without_host = trial
        if trial.peak_bytes > self.limit:
            return
        if self.best is None or self._is_better(trial, self.best):
            self.best = trial

    def take_better(self, other: Fitting) -> None:
        """Take what others decided for the same limit, where that is better."""
        for trial in (other.least, other.least_without_host, other.closest, other.best):
            if trial is not None and trial is not self.copies.first:
                self.add(trial)

    def _is_better(self, trial: Trial, other: Trial) -> bool:
        return trial.rank(self.aim, self.limit) < other.rank(self.aim, self.limit)

    def _cannot_win(self, choice: Choice, *, is_first: bool, others: bool = False) -> bool:
        """Is what was decided for ``main`` worse than the best, as far as estimates tell?

        What fits by its estimate is written once with all rules, ``is_first``: seconds of estimates
        may be wrong by more than what rules differ in.
        """
        best, answer = self.best, choice.effect.answer
        if best is None:
            return False
        question = choice.question
        is_short = not question.pairs and self._is_short(choice.effect.live, question.limit)
        if is_short and self._keeps_to_aim():
            return True
        if is_first and answer.excess <= 0:
            return False
        return answer.seconds > self._most_seconds(others)

    def _is_hopeless(self, least: float) -> bool:
        """Is all out of reach that needs at least so many bytes by an estimate, for what was
        written needs so much more than estimated? Of values of loops estimates know too little."""
        if self.best is not None or self.copies.has_loops or isinf(self._more_than_estimated):
            return False
        return least + self._more_than_estimated > WITHIN_REACH * self.limit

    def _most_seconds(self, others: bool = False) -> float:
        """What decisions may add to a step that are of use, as far as estimates tell.

        ``others``: by other rules than those of the best, which may need more than is aimed at.
        """
        best = self.best
        if best is None or not (others or self._keeps_to_aim()):
            return inf
        useful = best.step_seconds * max(best.peak_bytes, self.aim) / self.aim
        return (1 + _ESTIMATE_ERROR) * useful - self.copies.first.step_seconds

    def _keeps_to_aim(self) -> bool:
        """Does the best that was found keep within what is aimed at?"""
        return self.best is not None and self.best.peak_bytes <= self.aim

    def _is_short(self, live: np.ndarray, limit: float) -> bool:
        """Is memory short at a point outside of loops, whose blocks are decided later?"""
        return bool(np.any(live[self.copies.outside] > limit))

    def choice(self, wanted: float, rules: Rules, most_seconds: float = inf) -> Choice:
        """What is decided for ``main`` so that so many bytes are needed."""
        if (wanted, rules) not in self._choices:
            self._choices[wanted, rules] = self.copies.choice(
                wanted,
                rules,
                is_useless=self._is_short if self._keeps_to_aim() else None,
                most_seconds=most_seconds,
            )
        return self._choices[wanted, rules]


def _is_short(live: np.ndarray, limit: float) -> bool:
    """Is memory short at any point?"""
    return bool(np.any(live > limit))


def _is_worse(one: Outcome, other: Trial) -> bool:
    """Is it worse in bytes and in seconds?"""
    return one.peak_bytes > other.peak_bytes and one.step_seconds > other.step_seconds


def _changes(choice: Choice) -> Iterator[dict[int, Fate]]:
    """Decisions that differ from these in one."""
    for item, fates in enumerate(choice.question.fates):
        for fate in (Fate.KEEP, *fates):
            if choice.chosen.get(item, Fate.KEEP) is not fate:
                yield changed(choice.chosen, [(item, fate)])
