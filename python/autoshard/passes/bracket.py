"""Bytes between those that were asked for and fit, and those that do not."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from autoshard.rewrites.recomputation.choice import Choice


@dataclass
class Bracket:
    """Bytes that were asked for: the most with which it kept within the aim, the least without."""

    within: tuple[float, Choice] | None = None
    above: tuple[float, Choice] | None = None
    misses: dict[bool, float] = field(default_factory=dict[bool, float])
    """Bytes by which the last one within the aim, and the last one above, missed it."""
    is_close: bool = True
    """Did the last one miss it by less than half of what the one before on its side did?"""

    def add(self, wanted: float, choice: Choice, missed: float) -> None:
        """Something was written that needs so many bytes less than is aimed at."""
        is_within = missed >= 0
        self.is_close = abs(missed) < self.misses.get(is_within, inf) / 2
        self.misses[is_within] = abs(missed)
        if is_within and (self.within is None or wanted > self.within[0]):
            self.within = wanted, choice
        if not is_within and (self.above is None or wanted < self.above[0]):
            self.above = wanted, choice

    @property
    def gain(self) -> float:
        """Seconds of a step that something between both may save, as far as estimates tell."""
        if self.within is None or self.above is None:
            return inf
        less, more = (one.effect.answer.seconds for _, one in (self.within, self.above))
        return less - more

    def inside(self, wanted: float) -> float:
        """``wanted``, or once both are known the middle between them, where that is outside or
        the last one came no closer: more may differ from its estimate here than there."""
        if self.within is None or self.above is None:
            return wanted
        if self.is_close and self.within[0] < wanted < self.above[0]:
            return wanted
        return (self.within[0] + self.above[0]) / 2
