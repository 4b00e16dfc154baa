"""The command ``autoshard sweep``: one program on many machines, and how few chips will do."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoshard.cli.output import printing
from autoshard.explain.machines import FACTORS
from autoshard.writing import write_file

if TYPE_CHECKING:
    from autoshard.explain.what_if import Point, WhatIf

OK, NONE_IS_FAST_ENOUGH = 0, 2
"""Exit codes; 1 is an error."""

DESCRIPTION = (
    "Plan a program again for other machines: clusters, numbers of chips, so many times the"
    " bandwidth or memory. All combinations are planned. With --step, say the fewest devices that"
    " are fast enough."
)
EPILOG = """\
exit codes:
  0  planned; with --step: some cluster is fast enough
  1  the file cannot be read, or carries no plan: a message says why
  2  with --step: none is fast enough
"""
_FACTORS = tuple(name.replace("_", "-") for name in FACTORS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command is given."""
    parser.add_argument("file", metavar="FILE", help="what plan.save wrote, or a planned module")
    parser.add_argument(
        "--cluster",
        type=_texts,
        metavar="A,B",
        help="clusters: v5e:4x4,v5p:2x2x2, or TOML files; without it, that of the plan",
    )
    parser.add_argument(
        "--chips", type=_numbers(int), metavar="N,N", help="so many of the same chips: 8,16,32"
    )
    for name in _FACTORS:
        parser.add_argument(
            f"--{name}",
            type=_numbers(float),
            metavar="X,X",
            help=f"so many times the {name.replace('-', ' ')}: 0.5,1,2",
        )
    parser.add_argument(
        "--memory-limit", type=_texts, metavar="A,B", help="bytes of a device: 14GiB,28GiB"
    )
    parser.add_argument(
        "--overlap",
        type=_numbers(float),
        metavar="X,X",
        help="shares of communication that hide behind compute, 0 to 1: 0,0.5",
    )
    parser.add_argument("--step", type=float, metavar="S", help="seconds that a step may take")
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON; - is stdout")


def run(given: argparse.Namespace) -> int:
    """Plan, print and judge; the exit code.

    Raises:
        AutoshardError: The file cannot be read, carries no plan, or nothing varies.
    """
    from autoshard.explain.question import subject_of_file
    from autoshard.explain.what_if import what_if_module

    others = ("cluster", "chips", "memory_limit", "overlap")
    names = (*others, *(name.replace("-", "_") for name in _FACTORS))
    ranges = {name: getattr(given, name) for name in names}
    found = what_if_module(subject_of_file(Path(given.file)), ranges)
    least = None if given.step is None else found.fewest_devices(step_seconds=given.step)
    _print(found, given, least)
    return NONE_IS_FAST_ENOUGH if given.step is not None and least is None else OK


def _print(found: WhatIf, given: argparse.Namespace, least: Point | None) -> None:
    from rich.console import Console

    text = json.dumps(found.to_json(), indent=1) + "\n"
    if given.json not in (None, "-"):
        write_file(given.json, text.encode())
    with printing():
        if given.json == "-":
            print(text, end="")
            return
        Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(found)
        if given.step is not None:
            print(_enough(least, given.step))


def _enough(least: Point | None, seconds: float) -> str:
    from autoshard.planned.summary import seconds_text

    within = f"within {seconds_text(seconds)} a step"
    if least is None:
        return f"{within}: none of these"
    assert least.step_seconds is not None
    changed = ", ".join(f"{name} {value}" for name, value in least.changed.items())
    return (
        f"{within}: {least.devices} devices, {changed}, {seconds_text(least.step_seconds)} a step"
    )


def _texts(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def _numbers(kind: type[int] | type[float]) -> Any:
    def read(text: str) -> list[float]:
        return [kind(part) for part in text.split(",")]

    read.__name__ = "list of numbers"
    return read
