"""The command ``autoshard why``: why a plan is so, and why it is not otherwise."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from autoshard.cli.output import printing
from autoshard.errors import PassOptionError

OK, NOT_POSSIBLE = 0, 2
"""Exit codes; 1 is an error."""

DESCRIPTION = (
    "Say why a plan is as it is, by planning again: causes of a collective or a value up to a pin,"
    " a limit or a price; or with --not why the plan is not otherwise."
)
EPILOG = """\
exit codes:
  0  answered
  1  the file cannot be read, or has no such thing: a message says why
  2  with --not: the alternative is impossible, or does not fit
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command is given."""
    parser.add_argument("file", metavar="FILE", help="what plan.save wrote, or a planned module")
    parser.add_argument(
        "what",
        nargs="?",
        metavar="WHAT",
        help="the number of a collective in the plan's table, from 1; a value by its path,"
        " params.w2; or a line, mlp.py:41",
    )
    parser.add_argument(
        "--not",
        dest="alternatives",
        action="append",
        default=[],
        metavar="ALTERNATIVE",
        help="\"params.w2=P(None, 'model')\", or mesh=data=2,model=4; several hold together",
    )


def run(given: argparse.Namespace) -> int:
    """Answer and print; the exit code.

    Raises:
        AutoshardError: The file cannot be read, or has no such thing.
    """
    from autoshard.explain.causes import why
    from autoshard.explain.question import subject_of_file
    from autoshard.explain.why_not import why_not_subject

    if (given.what is None) == (not given.alternatives):
        raise PassOptionError("give either WHAT, such as params.w2, or --not ALTERNATIVE.")
    subject = subject_of_file(Path(given.file))
    if given.what is not None:
        _print(why(subject, given.what))
        return OK
    found = why_not_subject(subject, given.alternatives)
    _print(found)
    return NOT_POSSIBLE if found.verdict in ("impossible", "does not fit") else OK


def _print(found: object) -> None:
    from rich.console import Console

    with printing():
        Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(found)
