"""The command ``autoshard diff``: what became of a plan, for people, pull requests and CI."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from autoshard.cli.output import printing
from autoshard.errors import PassOptionError
from autoshard.writing import write_file

if TYPE_CHECKING:
    from autoshard.explain.diff import Diff

PROGRAM = "autoshard diff"

OK, GREW = 0, 2
"""Exit codes; 1 is an error."""

DESCRIPTION = (
    "Compare two plans: files that plan.save wrote, or planned modules. Seconds and bytes by term,"
    " groups of values that are cut otherwise, collectives that are new or gone, memory."
)
EPILOG = """\
exit codes:
  0  compared, and within the limits that are given
  1  a file cannot be read, or carries no plan: a message says why
  2  the second plan is slower or larger than a limit allows
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command is given."""
    parser.add_argument("before", metavar="A", help="the plan as it was")
    parser.add_argument("after", metavar="B", help="the plan as it is")
    parser.add_argument(
        "--fail-if-slower",
        type=_share,
        metavar="2%",
        help="exit with 2 if a step takes longer by more than this",
    )
    parser.add_argument(
        "--fail-if-larger",
        type=_share,
        metavar="2%",
        help="exit with 2 if the peak of memory grows by more than this",
    )
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON; - is stdout")
    parser.add_argument(
        "--markdown",
        metavar="FILE",
        help="write a summary in GitHub's Markdown; - is stdout, and $GITHUB_STEP_SUMMARY a file"
        " that is added to",
    )


def run(given: argparse.Namespace) -> int:
    """Compare, print and judge; the exit code.

    Raises:
        AutoshardError: A file cannot be read, or carries no plan.
    """
    from autoshard.explain.diff import diff_files

    found = diff_files(given.before, given.after)
    texts = {
        "json": lambda: json.dumps(found.to_json(), indent=1) + "\n",
        "markdown": found.to_markdown,
    }
    printed = False
    for option, text in texts.items():
        to = getattr(given, option)
        if to == "-":
            with printing():
                print(text())
            printed = True
        elif to is not None:
            _write(Path(to), text(), option)
    if not printed:
        with printing():
            _print(found)
    return _judged(found, given)


def _judged(found: Diff, given: argparse.Namespace) -> int:
    code = OK
    for option, term in (("fail_if_slower", "step"), ("fail_if_larger", "peak of memory")):
        most, grown = getattr(given, option), found.growth(term)
        if most is None:
            continue
        if grown is None:
            raise PassOptionError(
                f"--{option.replace('_', '-')}: a plan was made without a cluster, so that nothing"
                " is known of seconds and memory. Plan it with a cluster."
            )
        if grown > most:
            print(
                f"{PROGRAM}: {term}: {grown:+.2%}, more than the {most:.2%} that are allowed",
                file=sys.stderr,
            )
            code = GREW
    return code


def _share(text: str) -> float:
    """``2%`` or ``0.02``."""
    is_percent = text.strip().endswith("%")
    value = float(text.strip().removesuffix("%"))
    if value < 0:
        raise ValueError(text)
    return value / 100 if is_percent else value


def _write(path: Path, text: str, option: str) -> None:
    if str(path) != os.environ.get("GITHUB_STEP_SUMMARY"):
        write_file(str(path), text.encode())
        return
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise PassOptionError(f"--{option}: cannot write {path}: {error.strerror}.") from error


def _print(found: Diff) -> None:
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(found)
