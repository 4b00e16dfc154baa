"""Tables of measurements in the pages, from bench/results/*.csv.

    python bench/report.py            # writes every table
    python bench/report.py --check    # says which pages are not what the files say, exits 1

A page says where a table stands, and which part of a file it is:

    <!-- results: memory_techniques; model=vit_l16_hf.train; without cluster, fits; quiet -->
    .. the table ..
    <!-- /results -->

``COLUMN=VALUE`` takes the rows with that cell, and leaves out the column; of several values,
``COLUMN=VALUE|VALUE``, it stays. Behind the table stand the command that made it, releases, machine
and day; ``quiet`` leaves them out, where tables of one file follow each other. Numbers get their
separators of thousands here.

docs/design/compilers.md and docs/design/partitioner.md are written by bench/truth/compiler_table.py
and bench/truth/partitioner.py.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common.results import FOLDER, UNKNOWN, Results, read, shown

DOCS = Path(__file__).resolve().parents[1] / "docs"
COLUMNS = 120

_PLACE = re.compile(
    r"(?P<open><!-- results: (?P<what>.*?) -->\n)(.*?\n)??(?P<close><!-- /results -->)", re.DOTALL
)
_NUMBER = re.compile(r"[+-]?[\d,.]+( ?(%|ms|s|GiB|GB|MiB))?")


def page(text: str, folder: Path = FOLDER) -> str:
    """The text with every table as its file says.

    Raises:
        ValueError: A place asks for a file, a column or rows that are not there.
    """
    return _PLACE.sub(
        lambda found: f"{found['open']}{place(found['what'], folder)}\n{found['close']}", text
    )


def place(what: str, folder: Path) -> str:
    """What stands at a place, ``NAME; COLUMN=VALUE; without COLUMN COLUMN; quiet``."""
    name, *words = (word.strip() for word in what.split(";"))
    path = folder / f"{name}.csv"
    if not path.exists():
        raise ValueError(f"results of {name} are asked for, and there is no {path.name}.")
    results = read(path)
    hidden: set[str] = set()
    rows = results.rows
    for word in words:
        column, equals, value = word.partition("=")
        if equals:
            index, values = _index(results, column, name), value.split("|")
            rows = tuple(row for row in rows if row[index] in values)
            hidden.update([column] if len(values) == 1 else [])
        elif word.startswith("without "):
            hidden.update(word.removeprefix("without ").split(", "))
    if not rows:
        raise ValueError(f"{path.name} has no rows of {what}.")
    kept = [index for index, head in enumerate(results.heads) if head not in hidden]
    lines = table([results.heads[i] for i in kept], [[row[i] for i in kept] for row in rows])
    about = [] if "quiet" in words else ["", *provenance(results)]
    return "\n".join(["", *lines, *about, ""])


def _index(results: Results, column: str, name: str) -> int:
    if column not in results.heads:
        raise ValueError(f"{name}.csv has no column {column!r}, only {', '.join(results.heads)}.")
    return results.heads.index(column)


def table(heads: list[str], rows: list[list[str]]) -> list[str]:
    """Lines of Markdown; columns of numbers at the right."""
    rules: list[str] = []
    for index in range(len(heads)):
        cells = [row[index] for row in rows if row[index]]
        numbers = sum(bool(_NUMBER.fullmatch(cell)) for cell in cells)
        rules.append("---:" if 2 * numbers > len(cells) else "---")
    lines = [f"| {' | '.join(heads)} |", f"|{'|'.join(rules)}|"]
    return lines + [f"| {' | '.join(shown(cell) for cell in row)} |" for row in rows]


def provenance(results: Results) -> list[str]:
    """Lines that say where the numbers come from."""
    about = results.about
    command = about["command"]
    parts = ["command not recorded" if command == UNKNOWN else f"`{command}`"]
    parts += [about[name] for name in ("versions", "machine", "date") if about[name] != UNKNOWN]
    parts += [about["note"]] if "note" in about else []
    text = f"*{'; '.join(parts)}*"
    return textwrap.wrap(text, COLUMNS, break_long_words=False, break_on_hyphens=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="are the pages what the files say?")
    given = parser.parse_args()
    stale: list[str] = []
    for path in sorted(DOCS.rglob("*.md")):
        before = path.read_text()
        after = page(before)
        if after != before:
            stale.append(str(path.relative_to(DOCS.parent)))
            if not given.check:
                path.write_text(after)
    if stale and given.check:
        sys.exit(f"{', '.join(stale)}: not what bench/results says. Run python bench/report.py.")
    print(f"wrote {', '.join(stale)}" if stale else "all pages are what bench/results says")


if __name__ == "__main__":
    main()
