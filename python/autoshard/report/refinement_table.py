"""Plans that are compiled to choose among them, as a table, also while it goes on."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from autoshard.planned.summary import seconds_text
from autoshard.progress import silent
from autoshard.report.plan_table import new_table

if TYPE_CHECKING:
    from autoshard.search.refine import Attempt, Show


def refinement_table(attempts: Sequence[Attempt]) -> Table:
    """A row a plan: seconds as modelled, and the three of the compiled program."""
    table = new_table("mesh", "modelled", "as scheduled", "nothing hidden", "all hidden", "")
    for one in attempts:
        seconds = (
            one.modelled_seconds,
            one.scheduled_seconds,
            one.nothing_hidden_seconds,
            one.all_hidden_seconds,
        )
        cells = ["" if each is None else seconds_text(each) for each in seconds]
        said = "taken" if one.is_taken else one.why.partition("\n")[0][:80] or one.state
        style = "bold" if one.is_taken else ""
        table.add_row(Text(one.mesh), *cells, Text(said), style=style)
    return table


@contextmanager
def shown_attempts() -> Generator[Show]:
    """Shows attempts on standard error while they change; nothing where that is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda attempts: None
        return
    with silent(), Live(console=console) as live:
        yield lambda attempts: live.update(refinement_table(attempts))
