"""Programs to measure, as modules with their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.common.corpus import entries, load

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


def of_written(name: str) -> Lowered:
    """A step of bench/programs/written.py; what decoding writes into is left to the search."""
    from bench.programs.written import WRITTEN

    function, arguments, donated = WRITTEN[name]()
    roles = ["params", *["batch"] * (len(arguments) - 1)]
    for index in donated:
        roles[index] = "cache" if 0 not in donated else "opt_state" if index else "params"
    return lowered(function, roles, arguments)
