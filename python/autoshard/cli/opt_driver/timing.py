"""How long a run took: ``autoshard-opt --mlir-timing``."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Timing:
    """Seconds spent, by what on."""

    rows: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])

    def add(self, what: str, seconds: float) -> None:
        """Add a row."""
        self.rows.append((what, seconds))

    @contextmanager
    def measure(self, what: str) -> Generator[None]:
        """Add a row with the time that the block takes."""
        start = time.perf_counter()
        yield
        self.add(what, time.perf_counter() - start)

    def table(self) -> str:
        """Rows as text, with their share of the sum."""
        total = sum(seconds for _, seconds in self.rows)
        lines = ["===- autoshard-opt timing -==="]
        for what, seconds in [*self.rows, ("total", total)]:
            share = 100 * seconds / total if total else 0.0
            lines.append(f"{seconds:10.4f} s {share:5.1f}%  {what}")
        return "\n".join(lines)
