#!/usr/bin/env python3
"""Find directives in lit tests that test nothing.

filecheck takes a line without its colon for a comment, and lit takes a file without RUN line for
no test. Checked in every file under test/lit:

- a RUN line is there, with its colon;
- a CHECK directive (or a prefix that a RUN line names) has its colon and a suffix that exists;
- every prefix that a RUN line names has a directive.

Usage: check_lit_directives.py [FOLDER]   (default: test/lit of this repository)
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

_SUFFIXES = r"(?:-(?:DAG|COUNT-\d+|NOT|EMPTY|NEXT|SAME|LABEL))?(?:\{LITERAL\})?"
_RUN = re.compile(r"//\s*RUN:")
_RUN_WITHOUT_COLON = re.compile(r"//\s*RUN\b(?!:)")
_PREFIX_OPTION = re.compile(r"--?check-prefix(?:es)?[= ]([\w,-]+)")
_FILECHECK = re.compile(r"\bfilecheck\b")


def problems(text: str) -> Iterator[tuple[int, str]]:
    """What is wrong in one file: line number and message."""
    lines = text.split("\n")
    runs = [line for line in lines if _RUN.search(line)]
    if not runs:
        yield 1, "no RUN line: lit does not run this file"
    prefixes = prefixes_of(runs)
    names = "|".join(sorted(map(re.escape, prefixes | {"CHECK"}), key=len, reverse=True))
    starts = re.compile(rf"//\s*({names})(?P<rest>[-A-Z\d{{}}]*)(?P<colon>:?)")
    good = re.compile(rf"//\s*({names}){_SUFFIXES}:")
    for number, line in enumerate(lines, 1):
        if _RUN_WITHOUT_COLON.search(line):
            yield number, "RUN without colon is a comment"
        found = starts.search(line)
        if found is None or _RUN.search(line) or good.search(line):
            continue
        if found["colon"]:
            yield number, f'unknown directive "{found[0].lstrip("/ ")}"'
        else:
            yield number, f'"{found[0].lstrip("/ ")}" without colon is a comment'
    for prefix in sorted(prefixes):
        if not re.search(rf"//\s*{re.escape(prefix)}{_SUFFIXES}:", text):
            yield 1, f"a RUN line checks {prefix}, but no directive {prefix}: is there"


def prefixes_of(runs: list[str]) -> set[str]:
    """The prefixes that the filecheck commands of RUN lines look for."""
    found: set[str] = set()
    for run in runs:
        for command in _FILECHECK.split(run)[1:]:
            named = _PREFIX_OPTION.findall(command.split("|")[0])
            found.update(name for names in named for name in names.split(","))
            if not named:
                found.add("CHECK")
    return found


def main() -> int:
    """Print every problem; the exit code is 1 when there is one."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "test" / "lit"
    files = [path for path in sorted(folder.rglob("*.mlir")) if "Inputs" not in path.parts]
    count = 0
    for path in files:
        for line, message in problems(path.read_text(encoding="utf-8")):
            print(f"{path}:{line}: error: {message}")
            count += 1
    print(f"check_lit_directives: {len(files)} files, {count} problems")
    return 1 if count or not files else 0


if __name__ == "__main__":
    sys.exit(main())
