"""Plans that are compiled to choose among them, as a table, also while it goes on."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from autoshard.planned.summary import bytes_text, seconds_text
from autoshard.progress import silent
from autoshard.report.plan_table import new_table

if TYPE_CHECKING:
    from autoshard.search.refine import Attempt, Show


def refinement_table(attempts: Sequence[Attempt]) -> Table:
    """A row a plan: a step and the memory of a device, as modelled and as compiled."""
    what = ("as scheduled", "nothing hidden", "memory")
    pairs = [head for each in what for head in (f"{each}, modelled", "compiled")]
    table = new_table("mesh", "", *pairs, "")
    for one in attempts:
        seconds = (
            *(one.modelled_scheduled_seconds, one.scheduled_seconds),
            *(one.modelled_seconds, one.nothing_hidden_seconds),
        )
        cells = ["" if each is None else seconds_text(each) for each in seconds]
        sizes = (one.modelled_peak_bytes, one.compiled_peak_bytes)
        cells += ["" if each is None else bytes_text(each) for each in sizes]
        said = "taken" if one.is_taken else one.why.partition("\n")[0][:80] or one.state
        style = "bold" if one.is_taken else ""
        table.add_row(Text(one.mesh), one.kind, *cells, Text(said), style=style)
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
