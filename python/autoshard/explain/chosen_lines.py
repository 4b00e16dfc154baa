"""The lines that a program may have: chosen on few of its equal layers, measured on all of it."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.explain.folded_layers import folded
from autoshard.explain.line_candidates import Candidate, candidates
from autoshard.explain.line_choice import Chosen, LineChoice
from autoshard.explain.propagated_lines import ByPlanner, ByShardy, propagation_of
from autoshard.explain.question import Subject
from autoshard.explain.reproduced import Propagated, collectives_of, together


class ProgramLines:
    """All lines of a planned program, and what propagation makes of some."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.wanted = together(collectives_of(subject.imported, subject.plan))
        """What the plan sends."""
        few = folded(subject)
        on_few = subject if few is None else few.subject
        propagation, self.not_by_shardy = propagation_of(on_few)
        """``not_by_shardy`` is as of ``Annotations``."""
        self._whole = propagation
        if few is not None:
            self._whole = ByPlanner(subject) if self.not_by_shardy else ByShardy(subject)
        there = {line: line if few is None else few.line(line) for line in candidates(subject)}
        self._on_few = {line: one for line, one in there.items() if one is not None}
        self.candidates = tuple(self._on_few)
        """Lines of the whole program that speak of one of the few layers, too."""
        self._of_all = {id(one): line for line, one in self._on_few.items()}
        self._choice = LineChoice(on_few, list(self._on_few.values()), propagation)
        self._is_folded = few is not None

    def propagated(self, lines: Sequence[Candidate]) -> Propagated:
        """What comes of lines, of the whole program.

        Raises:
            StrategyError: No propagation keeps them.
        """
        return self._whole(lines)

    def chosen(self, most: int) -> Chosen[Candidate]:
        """See ``LineChoice.chosen``."""
        return self._measured(self._choice.chosen(most))

    def needed(
        self, lines: Sequence[Candidate], most: int, kept: Sequence[Candidate]
    ) -> Chosen[Candidate]:
        """See ``LineChoice.needed``."""
        there = [[self._on_few[line] for line in some] for some in (lines, kept)]
        return self._measured(self._choice.needed(there[0], most, there[1]))

    def _measured(self, found: Chosen[Candidate]) -> Chosen[Candidate]:
        if not self._is_folded:
            return found
        lines = tuple(self._of_all[id(line)] for line in found.lines)
        return Chosen(lines, self.propagated(lines), found.untried)
