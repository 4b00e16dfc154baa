"""Which values of a program somebody means: by path, by result, or by line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from autoshard.errors import PlanError
from autoshard.explain.question import Subject
from autoshard.importer.imported_program import NO_VALUE
from autoshard.planned.summarize import argument_name, line_of, main_values

_WORD = re.compile(r"\w+|\*")
_LINE = re.compile(r"[^\[\]']+:\d+")


def values_called(subject: Subject, text: str) -> list[int]:
    """The values that a text names, by their numbers.

    ``params.w2`` and ``params['w2']`` are one path; its last words do, and ``*`` stands for any
    word. ``mlp.py:41`` names what is computed on a line.

    Args:
        subject: Whose values.
        text: What the user wrote.

    Raises:
        PlanError: There is no such value, with those that are called alike.
    """
    if _LINE.fullmatch(text):
        return _made_at(subject, text)
    wanted = _WORD.findall(text)
    names = named_values(subject)
    exact = [value for name, value in names if _matches(_WORD.findall(name), wanted)]
    found = exact or [
        value for name, value in names if _matches(_WORD.findall(name)[-len(wanted) :], wanted)
    ]
    if not wanted or not found:
        all_names = [name for name, _ in names]
        close = difflib.get_close_matches(text, all_names, n=3, cutoff=0.3) or all_names[:3]
        raise PlanError(
            f"{subject.name}: no argument or result is called {text!r}. There are"
            f" {', '.join(close)}, .. Write a path such as params.w2, with * for any word, or a"
            " line such as mlp.py:41."
        )
    return list(dict.fromkeys(found))


def named_values(subject: Subject) -> list[tuple[str, int]]:
    """Names of arguments and results, with the numbers of their values; without scalars."""
    main = main_values(subject.imported)
    block = main.op.regions[0].blocks[0]
    named = [
        (argument_name(argument, number), value)
        for number, (argument, value) in enumerate(
            zip(block.arguments, main.arguments, strict=True)
        )
    ]
    results = subject.result_names or [f"result {number}" for number in range(len(main.results))]
    named += zip(results, main.results, strict=True)
    return [(name, value) for name, value in named if value != NO_VALUE]


def ops_at(subject: Subject, line: str) -> list[int]:
    """Ops on a line of the user's code, by their numbers."""
    ops = subject.imported.core_ops
    return [number for number, op in enumerate(ops) if is_line(line_of(op), line)]


def is_line(location: str | None, wanted: str) -> bool:
    """Is ``/home/me/mlp.py:41`` what is meant by ``mlp.py:41``?"""
    return location is not None and (location == wanted or location.endswith(f"/{wanted}"))


def _made_at(subject: Subject, line: str) -> list[int]:
    found = [
        value
        for op, values in subject.imported.result_values
        if is_line(line_of(op), line)
        for value in values
        if value != NO_VALUE
    ]
    if not found:
        raise PlanError(f"{subject.name}: nothing is computed at {line}. Give another line.")
    return list(dict.fromkeys(found))


def _matches(words: Sequence[str], wanted: Sequence[str]) -> bool:
    return len(words) == len(wanted) and all(
        want in ("*", word) for word, want in zip(words, wanted, strict=True)
    )
