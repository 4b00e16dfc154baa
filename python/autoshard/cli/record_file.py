"""What subcommands that ask about plans read: records, saved plans, planned modules."""

from __future__ import annotations

import json
from pathlib import Path

from autoshard.explain.record import Record
from autoshard.explain.record_build import record_of_module
from autoshard.ir import new_context, parse_given, read_bytes

FILES = (
    "a plan: what plan.save wrote, a planned module as autoshard-opt writes it, or a record, as"
    " --plan-json writes it; - is standard input"
)
"""For the help of subcommands."""


def read_record(path: str) -> Record:
    """The record of a plan in any of the forms that it is kept in.

    Args:
        path: The file; ``-`` is standard input.

    Raises:
        ParseError: It cannot be read, or is something else.
        PlanError: A module without a plan.
    """
    data, packed = read_bytes(path)
    name = "<stdin>" if path == "-" else path
    if data.lstrip()[:1] == b"{":
        text = data.decode(errors="replace")
        return _saved(text, name) if _is_saved_plan(text) else Record.from_json(text, name)
    text_file = None if packed or path == "-" else path
    return record_of_module(parse_given(data, new_context(), name, text_file), Path(name).name)


def _is_saved_plan(text: str) -> bool:
    try:
        return "autoshard_plan" in json.loads(text)
    except (ValueError, RecursionError):
        return False  # the reader of records says what is wrong


def _saved(text: str, name: str) -> Record:
    # Imported here: it needs jax, which records and modules do not.
    from autoshard.frontend.plan_file import plan_of_text

    return plan_of_text(text, name).record
