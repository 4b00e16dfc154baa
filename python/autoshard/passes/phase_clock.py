"""Seconds of the phases of planning."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class PhaseClock:
    """Seconds by phase, in order."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Add the time that the block takes."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def split(self, name: str, parts: Sequence[tuple[str, float]]) -> None:
        """Replace a phase by its parts; what they leave over keeps the name."""
        whole = self.seconds.pop(name)
        for part, seconds in parts:
            self.seconds[part] = self.seconds.get(part, 0.0) + seconds
        rest = whole - sum(seconds for _, seconds in parts)
        if rest > 0:
            self.seconds[name] = rest
