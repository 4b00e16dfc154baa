"""What tables of planned and compiled programs share: programs, compiled rows, rows in a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bench.common.corpus import entries, load

Row = dict[str, Any]
Key = TypeVar("Key")
Lowered = tuple[Any, list[dict[str, Any]]]
"""A module, and its arguments as ``args`` in the corpus."""


def of_corpus(name: str) -> Lowered:
    """A program of the corpus."""
    (entry,) = entries([name])
    return load(entry), entry.info["args"]


def lowered(step: Any, roles: Sequence[str], arguments: Sequence[Any]) -> Lowered:
    """A JAX function at shapes, with a role for each of its arguments."""
    from autoshard.ir import new_context, parse_bytes
    from bench.programs.lowered import lower

    made = lower(step, roles, *arguments)
    return parse_bytes(made.bytecode, new_context(), "step"), made.arguments


def of_case(case: Any) -> Lowered:
    """A step of bench/programs/storage.py or bench/programs/fidelity.py, parameters first."""
    function, arguments, donated = case
    roles = ["params", *["batch"] * (len(arguments) - 1)]
    if 1 in donated:
        roles[1] = "opt_state"
    return lowered(function, roles, arguments)


def compiled_row(found: Any) -> Row:
    """What a compiler says of a program's memory."""
    return {
        "compiler": found.compiler,
        "compile": found.compile_seconds,
        "fits": found.fits,
        "needed": found.needed_bytes,
        "live": found.live_bytes,
    }


def compiled_peak(row: Row) -> float | None:
    """The compiler's peak on a device; of what does not fit, what it says that it needs."""
    return row.get("live") or row.get("needed")


def peak_error(row: Row) -> float | None:
    """Predicted over the compiler's peak, less 1."""
    theirs = compiled_peak(row)
    return row["peak"] / theirs - 1 if theirs else None


def kept_rows(path: Path | None, key_of: Callable[[Row], Key]) -> dict[Key, Row]:
    """Rows of earlier runs; of two for one point the later one."""
    if path is None or not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {key_of(row): row for row in rows}


def keep_row(path: Path | None, row: Row) -> None:
    """Append a row, if there is a file for it."""
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")
