"""The command ``autoshard frontier``: plans that no other beats in time and memory."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from autoshard.cli.output import printing

DESCRIPTION = "Plans of a plan's mesh that no other beats in both step and memory, with prices."
EPILOG = "A row is taken with autoshard.plan(.., mem_coeff=..), or by plan.frontier().take(3).\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command is given."""
    parser.add_argument("file", metavar="FILE", help="what plan.save wrote, or a planned module")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")


def run(given: argparse.Namespace) -> int:
    """Plan and print; the exit code.

    Raises:
        AutoshardError: The file cannot be read, or carries no plan.
    """
    from rich.console import Console

    from autoshard.explain.frontier import frontier
    from autoshard.explain.question import subject_of_file

    found = frontier(subject_of_file(Path(given.file)))
    with printing():
        if given.json:
            print(json.dumps(found.to_json(), indent=1))
        else:
            Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(found)
    return 0
