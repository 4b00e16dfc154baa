"""Lines chosen by what a compiler makes of them, from those that propagation chose.

Propagation says how values lie. How a partitioner gets from one to the next is its own affair: it
may sum over all devices where a transfer of an operand would do. So the program with lines is
compiled, and every byte that it sends beyond the plan, or the plan beyond it, is blamed on the op
that it is sent for. Lines around these ops whose values come out otherwise than planned are added,
those with most blame first; where all come out as planned, how the op reads its operands is said,
and how it makes what it makes. Then lines go that propagation does not miss beside them, and it is
compiled again. Where that is worse, fewer of them are added. Of all that was compiled the best one
is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from autoshard.errors import CompileError, StrategyError
from autoshard.explain.chosen_lines import ProgramLines
from autoshard.explain.compiled_lines import CompiledLines, LinesCompiler
from autoshard.explain.line_candidates import Candidate
from autoshard.explain.line_choice import NOTHING, Chosen, is_enough, loss_of
from autoshard.explain.line_weights import LineWeights
from autoshard.progress import running

_AT_A_TIME = 6
"""So many lines are added before it is compiled again."""


@dataclass(frozen=True)
class CompiledChoice:
    """Lines with what propagation and the compiler make of them."""

    chosen: Chosen[Candidate]
    made: CompiledLines
    kept: tuple[Candidate, ...] = ()
    """Those that the compiler was the reason for."""


def compiled_choice(
    lines: ProgramLines,
    chosen: Chosen[Candidate],
    compiler: LinesCompiler,
    most: int,
    compiles: int,
) -> CompiledChoice:
    """The best of some lists of lines, as compiled; until Ctrl-C.

    Args:
        lines: All that there are.
        chosen: What propagation chose.
        compiler: Compiles the program with lines.
        most: How many lines at most.
        compiles: How many times that is done, beside once for the plan.

    Raises:
        CompileError: The first list, or the plan, is not compiled: see ``LinesCompiler``. A later
            one that is not is no choice.
    """
    choice = _Choice(lines, most)
    best = CompiledChoice(chosen, compiler(chosen.lines))
    for number in range(1, compiles):
        if _is_enough(best.made) or running().is_interrupted:
            break
        running().says(f"compile {number + 1} of {compiles}, {best.made.reproduced:.1%} so far")
        try:
            following = choice.following(best)
            if following is None or running().is_interrupted:
                break
            made = compiler(following[0].lines)
        except CompileError as error:
            running().says(f"compile {number + 1} of {compiles} failed: {error.message}")
            choice.learn(is_better=False)
            continue
        except KeyboardInterrupt:
            if not running().keeps_best:
                raise
            running().is_interrupted = True
            break
        is_better = _loss(made) < _loss(best.made)
        choice.learn(is_better)
        if is_better:
            best = CompiledChoice(following[0], made, following[1])
    return best


class _Choice:
    """The next list of lines after the best one that was compiled."""

    def __init__(self, lines: ProgramLines, most: int) -> None:
        self.lines, self.most = lines, most
        self.weights = LineWeights(lines.subject, lines.candidates, ())
        self.spent: set[int] = set()
        """Ids of lines that made nothing better alone."""
        self.at_a_time = _AT_A_TIME
        self.added: list[Candidate] = []

    def following(
        self, best: CompiledChoice
    ) -> tuple[Chosen[Candidate], tuple[Candidate, ...]] | None:
        """With lines for what is to blame, and those to keep; None where there are none to try."""
        self.added = self._added(best)
        if not self.added:
            return None
        kept = (*self.added, *best.kept)[: self.most]
        others = [line for line in best.chosen.lines if line not in kept]
        return self.lines.needed((*kept, *others), self.most, kept), kept

    def learn(self, is_better: bool) -> None:
        """Fewer lines are added next where those before made it worse, the first of them again."""
        if is_better:
            self.at_a_time = _AT_A_TIME
        elif len(self.added) > 1:
            self.at_a_time = len(self.added) // 2
        else:
            self.spent.update(map(id, self.added))

    def _added(self, last: CompiledChoice) -> list[Candidate]:
        """Lines for what is to blame, each with those before it propagated."""
        blame = last.made.blame
        least = NOTHING * last.made.planned_bytes
        there = self.spent | set(map(id, last.chosen.lines))
        waiting = {
            number
            for number, line in enumerate(self.lines.candidates)
            if line.is_writable and id(line) not in there
        }
        found, added = last.chosen.found, list[Candidate]()
        while len(added) < self.at_a_time:
            weights = self.weights.by_ops(blame, found, waiting)
            number = max(weights, key=lambda one: (weights[one], -one), default=-1)
            if number < 0 or weights[number] < least:
                break
            waiting.remove(number)
            line = self.lines.candidates[number]
            try:
                found = self.lines.propagated([*last.chosen.lines, *added, line])
            except StrategyError:
                continue
            added.append(line)
        return added


def _is_enough(made: CompiledLines) -> bool:
    return is_enough(made.reproduced, _excess(made))


def _loss(made: CompiledLines) -> float:
    return loss_of(made.reproduced, _excess(made))


def _excess(made: CompiledLines) -> float:
    """As of lines that are propagated; what does not fit is no choice."""
    if not made.program.fits:
        return inf
    besides = sum(one.bytes for one in made.other) / max(1.0, made.planned_bytes)
    return besides + max(0.0, made.step_seconds / made.planned_seconds - 1)
