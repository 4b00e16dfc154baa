"""What is told of a search while it runs, and how Ctrl-C ends it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from autoshard.ir import warn
from autoshard.planned.summary import seconds_text
from autoshard.progress import running

Show = Callable[[str, int, float, Sequence[int], bool], bool]
"""As ``_core.recursive_programming`` takes it."""


def shown_search() -> Show:
    """Shows a search in the task that runs, and ends it where Ctrl-C may.

    It raises KeyboardInterrupt where no plan that fits is known yet, where the task keeps none, and
    when it is pressed again.
    """
    task = running()

    def show(
        phase: str, plans: int, best_seconds: float, best_mesh: Sequence[int], interrupted: bool
    ) -> bool:
        found = ""
        if math.isfinite(best_seconds):
            sizes = "x".join(map(str, best_mesh))
            found = f"a step of {seconds_text(best_seconds)} on a mesh of {sizes}"
        if not interrupted:
            try:
                task.says(f"{phase}, {plans} compared{', best ' if found else ''}{found}")
            except KeyboardInterrupt:
                pass  # pressed while it was said: as if it had been pressed in the search
            else:
                return True
        if task.is_interrupted or not (task.keeps_best and found):
            raise KeyboardInterrupt
        task.is_interrupted = True
        warn(f"planning was interrupted: the best plan of {plans} is taken, {found}.")
        return False

    return show
