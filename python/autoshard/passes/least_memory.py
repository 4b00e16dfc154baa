"""What a step needs least, whatever it takes: tried where a limit would be refused.

What is decided for a limit is tried with that limit in mind, and another one leads to other
decisions. So that nobody is refused what a smaller limit would have given, the same is tried here
for all limits.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.passes.fitting import MOST_OFF, Copies, Fitting, Trial
from autoshard.rewrites.recomputation.question import Rules

_LEAST = 0.3
"""Share of what a module needs as it is down to which decisions are tried."""

_MOST_RUNGS = 5
"""Limits from there on, each the same part of the one before."""

_LEAST_RUNGS = 2
"""So many where modules are large; with all that is allowed alone."""

_MOST_OPS = 1_500
"""Ops of all modules that are rewritten for limits in one way, at most, with more of them."""


class LeastMemory(Fitting):
    """Rewritten copies of a module that need less and less.

    Which ones are written depends on the module alone, but for large ones that cannot fit the
    limit by their estimates; ``fitting`` is the best within it.
    """

    def __init__(self, copies: Copies, limit: float) -> None:
        """Nothing is tried yet; ``limit`` are bytes on one device."""
        super().__init__(copies, 0.0, 0.0)
        self.fitting: Trial | None = None
        self._accepted = limit

    def run(self, ways: Sequence[Rules]) -> None:
        """Decide for smaller and smaller limits, then change what needs least, in each way."""
        num_ops = self.copies.first.costed.imported.program.num_ops
        rungs = min(_MOST_RUNGS, max(_LEAST_RUNGS, _MOST_OPS // num_ops))
        for rules in ways if rungs > _LEAST_RUNGS else ways[-1:]:
            if not self._is_near(self.copies.least_bytes(self._accepted, rules)):
                continue
            for rung in range(1, rungs + 1):
                wanted = _LEAST ** (rung / rungs) * self.copies.without
                choice = self.choice(wanted, rules)
                needed = self.copies.beside + choice.peak_bytes
                if (choice.chosen or self.copies.has_loops) and self._is_near(needed):
                    self.write(choice, wanted, rules)
            self.improve(rules, 1 / len(ways))

    def _is_near(self, estimated: float) -> bool:
        """Could so many bytes by an estimate fit the limit, or what single changes make of them?

        Of values of loops estimates know too little.
        """
        if self.copies.has_loops or self.copies_left(1.0) > 0:
            return True
        return estimated <= MOST_OFF * self._accepted

    def _newest(self, rules: Rules) -> Trial | None:
        return self.least if rules.host else self.least_without_host

    def add(self, trial: Trial) -> None:
        """See ``Fitting.add``."""
        super().add(trial)
        best = self.fitting
        is_faster = best is None or trial.step_seconds < best.step_seconds
        if trial.peak_bytes <= self._accepted and is_faster:
            self.fitting = trial
