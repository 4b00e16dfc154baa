"""Tables of measurements as files: what a bench writes, and what pages show.

    # command: python bench/truth/storage.py
    # date: 2026-11-20
    # versions: libtpu 0.0.42.1, jaxlib 0.10.2
    # machine: AMD EPYC, 2 cores
    program,predicted MiB,compiled MiB
    mlp adam,450.0,450.0

Lines that begin with ``#`` say where the rows below them come from; a file may have further such
lines, ``note``. Numbers are written without separators of thousands.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import platform
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

FOLDER = Path(__file__).resolve().parents[1] / "results"
PACKAGES = ("jax", "jaxlib", "libtpu", "jax-cuda12-pjrt", "jax-cuda13-pjrt")
SOURCES = ("command", "date", "versions", "machine")
"""What every file says of itself."""
UNKNOWN = "not recorded"
"""What a file says that was not written down when it was measured."""


@dataclass(frozen=True)
class Results:
    """One table, and where it comes from."""

    about: dict[str, str]
    """command, date, versions, machine, and note if there is something to add."""
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        """As the file has it."""
        text = io.StringIO()
        text.writelines(f"# {name}: {value}\n" for name, value in self.about.items())
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([self.heads, *self.rows])
        return text.getvalue()


def read(path: Path) -> Results:
    """A file of results.

    Raises:
        ValueError: A line says less than it has to, or a row has too many or too few cells.
    """
    lines = path.read_text().splitlines()
    said = [line for line in lines if line.startswith("# ")]
    about = {name: value for name, _, value in (line[2:].partition(": ") for line in said)}
    missing = [name for name in SOURCES if not about.get(name)]
    if missing:
        raise ValueError(f"{path.name} does not say its {', '.join(missing)}: add '# NAME: ..'.")
    heads, *rows = csv.reader(line for line in lines if not line.startswith("# "))
    for row in rows:
        if len(row) != len(heads):
            raise ValueError(f"{path.name}: {row} has {len(row)} cells, {len(heads)} are needed.")
    return Results(about, tuple(heads), tuple(tuple(row) for row in rows))


def add_option(parser: argparse.ArgumentParser, name: str) -> None:
    """``--csv FILE``: write the table to a file; without FILE to that of the pages."""
    parser.add_argument(
        "--csv",
        type=Path,
        nargs="?",
        const=FOLDER / f"{name}.csv",
        metavar="FILE",
        help=f"write the rows to FILE (bench/results/{name}.csv); then run bench/report.py",
    )


def write(path: Path | None, table: Any, heads: Sequence[str] = ()) -> None:
    """Write a table of rich to a file, with the command that is running; None: do nothing.

    Args:
        path: Of the file; what it was before is gone.
        table: A ``rich.table.Table`` of texts.
        heads: Instead of the table's own, where two of these are equal.
    """
    named = list(heads) or [str(column.header) for column in table.columns]
    write_rows(path, named, zip(*(column.cells for column in table.columns), strict=True))


def write_rows(path: Path | None, heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write rows as ``write`` does, short ones filled with empty cells."""
    if path is None:
        return
    if len(set(heads)) != len(heads):
        raise ValueError(f"two columns of {path.name} have one name: {', '.join(heads)}.")
    cells = (tuple(plain(str(cell)) for cell in row) for row in rows)
    filled = tuple(row + ("",) * (len(heads) - len(row)) for row in cells)
    path.write_text(str(Results(about_this_run(), tuple(heads), filled)))
    print(f"wrote {path}; now python bench/report.py")


def show(
    title: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    words: Iterable[str],
    width: int = 160,
) -> None:
    """Print rows as a table.

    Args:
        title: Above it.
        heads: One of each column.
        rows: A cell for each column.
        words: Heads of the columns that hold words; all others hold numbers.
        width: Characters of a line where nobody looks at a terminal.
    """
    table = Table(title=title)
    for head in heads:
        table.add_column(head, justify="left" if head in words else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else width).print(table)


def about_this_run() -> dict[str, str]:
    """The command without ``--csv``, the day, releases and processor."""
    from bench.common.corpus import machine

    given = [Path(sys.argv[0]).resolve(), *sys.argv[1:]]
    root = FOLDER.parents[1]
    script = given[0].relative_to(root) if given[0].is_relative_to(root) else given[0].name
    words = [str(word) for word in given[1:]]
    for place, word in enumerate(words):
        if word == "--csv":
            file = words[place + 1 : place + 2]
            del words[place : place + (2 if file and file[0].endswith(".csv") else 1)]
            break
    installed = {each.metadata["Name"]: each.version for each in metadata.distributions()}
    versions = [f"{name} {installed[name]}" for name in PACKAGES if name in installed]
    return {
        "command": f"python {script} {shlex.join(words)}".strip(),
        "date": datetime.now(tz=UTC).date().isoformat(),
        "versions": ", ".join(versions),
        "machine": machine().partition(", Python")[0]
        + f", Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}",
    }


def plain(cell: str) -> str:
    """A cell without markup of rich and without separators of thousands."""
    text = re.sub(r"\[/?[a-z ]*\]", "", cell)
    return re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)


def shown(cell: str) -> str:
    """A cell as pages have it: a number with separators of thousands."""
    if not re.fullmatch(r"[+-]?\d{4,}(\.\d+)?( ?[%a-zA-Z]+)?", cell):
        return cell
    whole = re.search(r"\d+", cell)
    assert whole is not None
    return f"{cell[: whole.start()]}{int(whole[0]):,}{cell[whole.end() :]}"
