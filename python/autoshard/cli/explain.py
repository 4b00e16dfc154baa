"""``autoshard explain FILE``: a plan, explained on a terminal, in Markdown, or for other tools."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from autoshard.cli.output import printing
from autoshard.cli.record_file import FILES, read_record
from autoshard.errors import ParseError, PassOptionError
from autoshard.explain.remarks_files import remarks_sarif, remarks_text, remarks_yaml
from autoshard.report.explanation import Explanation
from autoshard.writing import write_file

if TYPE_CHECKING:
    from autoshard.explain.frontier import Frontier

DESCRIPTION = """\
Say what a step of a plan is spent on, by phase and by function of the program, with the bottleneck
and the distance from the roofline. Nothing is run or compiled."""

_FORMATS: dict[str, Callable[[Explanation], str]] = {
    "html": lambda found: found.to_html(),
    "json": lambda found: found.record.to_json(),
    "md": lambda found: found.to_markdown(),
    "model-explorer": lambda found: found.to_model_explorer(),
    "node-data": lambda found: found.to_node_data(),
    "remarks": lambda found: remarks_text(found.remarks),
    "sarif": lambda found: remarks_sarif(found.remarks),
    "text": lambda found: f"{found}\n",
    "trace": lambda found: found.to_trace(),
    "yaml": lambda found: remarks_yaml(found.remarks),
}
"""Each as the text of a file."""

_WITH_FRONTIER = ("html", "md", "text")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the subcommand takes."""
    parser.add_argument("file", metavar="FILE", help=FILES)
    parser.add_argument(
        "--format",
        choices=sorted(_FORMATS),
        default="text",
        help="text: tables; md: Markdown for a pull request; html: a page by itself; json: the"
        " record; remarks, yaml,"
        " sarif: remarks at the lines of the program, for editors, LLVM's viewers and code"
        " scanning; model-explorer, node-data: a graph for Google's Model Explorer, and seconds on"
        " its nodes; trace: the step as the plan models it, for https://ui.perfetto.dev (text)",
    )
    parser.add_argument(
        "--frontier",
        action="store_true",
        help="show plans of the same mesh that no other beats in both time and memory as well, in"
        " text, md and html; it takes several searches, and a plan or module, not a record",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write it there; else it is printed")


def run(options: argparse.Namespace) -> int:
    """Explain a file.

    Raises:
        ParseError: It is no plan.
        PlanError: It is none of a cluster, so that nothing is known of seconds.
        OutputError: The output cannot be written.
        PassOptionError: A frontier is asked for in a format that has none, or of a record.
    """
    found = Explanation(read_record(options.file), _frontier(options))
    if options.output is not None:
        write_file(options.output, _FORMATS[options.format](found).encode())
        return 0
    is_shown = options.format == "text" and sys.stdout.isatty()
    text = "" if is_shown else _FORMATS[options.format](found)
    with printing():
        if is_shown:
            Console().print(found)
        else:
            print(text, end="")
    return 0


def _frontier(options: argparse.Namespace) -> Frontier | None:
    """What ``--frontier`` asks for."""
    if not options.frontier:
        return None
    if options.format not in _WITH_FRONTIER:
        raise PassOptionError(
            f"--format {options.format} has no frontier, only {', '.join(_WITH_FRONTIER)} have. Ask"
            " for one of them, or for the rows alone: autoshard frontier FILE --json."
        )
    # Imported here: it needs jax, which records and modules do not.
    from autoshard.explain.frontier import frontier
    from autoshard.explain.question import subject_of_file

    try:
        subject = subject_of_file(Path(options.file))
    except ParseError as error:
        raise PassOptionError(
            f"--frontier plans {options.file} again, which is no file of a program but a record, or"
            " standard input. Give a file that plan.save wrote, or a planned module."
        ) from error
    return frontier(subject)
