"""Compare messages with comments of the input: ``autoshard-opt --verify-diagnostics``.

A comment says what is expected where, in the form of mlir-opt::

    // expected-error@+1 {{rank}}            an error with this text on the next line
    // expected-warning {{text}}             a warning on this line
    // expected-note@below {{text}}          on the next line that holds no such comment
    // expected-error@above {{text}}         on the line above that holds no such comment
    // expected-error-re@-2 {{dim {{[0-9]+}}}}   with regular expressions inside {{ }}
    // expected-error@unknown {{text}}       not on a line of the input

Every message must be expected and every expected one must come.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autoshard.ir.diagnostics import Diagnostic, Severity

_COMMENT = re.compile(
    r"expected-(?P<severity>error|warning|note|remark)(?P<regex>-re)?"
    r"(?:@(?P<where>[+-]\d+|above|below|unknown))?\s*\{\{(?P<text>.*)\}\}\s*$"
)
_ANY_COMMENT = re.compile(r"expected-(?:error|warning|note|remark)")
_INNER_REGEX = re.compile(r"\{\{(.*?)\}\}")


@dataclass(frozen=True, slots=True)
class Expected:
    """One comment."""

    severity: Severity
    pattern: re.Pattern[str]
    text: str
    """As written, for messages."""
    line: int | None
    """Line of the input, from 1; None: anywhere outside the input."""
    comment_line: int


def check_diagnostics(text: str, name: str, found: Iterable[Diagnostic]) -> list[Diagnostic]:
    """What is wrong: unexpected messages, and expected ones that did not come.

    Args:
        text: The input with its comments.
        name: The input's file name, as places show it.
        found: The messages of parser and passes.

    Returns:
        Errors; empty when everything is as the comments say.
    """
    expected, wrong = _read_comments(text, name)
    for diagnostic in _flat(found):
        line = _line_in(diagnostic.place, name)
        match = next((e for e in expected if _fits(e, diagnostic, line)), None)
        if match is not None:
            expected.remove(match)
        else:
            message = f"unexpected {diagnostic.severity}: {diagnostic.message}"
            wrong.append(Diagnostic("error", message, diagnostic.place))
    for missing in expected:
        message = f'expected {missing.severity} "{missing.text}" was not produced'
        wrong.append(Diagnostic("error", message, f"{name}:{missing.comment_line}"))
    return wrong


def _fits(expected: Expected, found: Diagnostic, line: int | None) -> bool:
    return (
        expected.severity == found.severity
        and expected.line == line
        and expected.pattern.search(found.message) is not None
    )


def _flat(diagnostics: Iterable[Diagnostic]) -> Iterable[Diagnostic]:
    for diagnostic in diagnostics:
        yield diagnostic
        yield from _flat(diagnostic.notes)


def _line_in(place: str | None, name: str) -> int | None:
    """The line of a place in the input; None for a place elsewhere."""
    if place is None or not place.startswith(f"{name}:"):
        return None
    return int(place.removeprefix(f"{name}:").split(":")[0])


def _read_comments(text: str, name: str) -> tuple[list[Expected], list[Diagnostic]]:
    """The expectations, and errors for comments that cannot be read."""
    expected: list[Expected] = []
    wrong: list[Diagnostic] = []
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if _ANY_COMMENT.search(line) is None:
            continue
        found = _COMMENT.search(line)
        if found is None:
            wrong.append(Diagnostic("error", _UNREADABLE, f"{name}:{number}"))
            continue
        expected.append(
            Expected(
                severity=_SEVERITIES[found["severity"]],
                pattern=_pattern(found["text"], found["regex"] is not None),
                text=found["text"],
                line=_target(found["where"], number, lines),
                comment_line=number,
            )
        )
    return expected, wrong


_UNREADABLE = "cannot read this comment. Write // expected-error@+1 {{text}}, with nothing after it"
_SEVERITIES: dict[str, Severity] = {
    "error": "error",
    "warning": "warning",
    "note": "note",
    "remark": "remark",
}


def _target(where: str | None, number: int, lines: Sequence[str]) -> int | None:
    """The line that a comment on line ``number`` means."""
    if where is None:
        return number
    if where == "unknown":
        return None
    if where not in ("above", "below"):
        return number + int(where)
    step = 1 if where == "below" else -1
    target = number + step
    while 0 < target <= len(lines) and _ANY_COMMENT.search(lines[target - 1]):
        target += step
    return target


def _pattern(text: str, is_regex: bool) -> re.Pattern[str]:
    """Matches messages that contain ``text``."""
    if not is_regex:
        return re.compile(re.escape(text))
    parts = _INNER_REGEX.split(text)
    return re.compile(
        "".join(part if index % 2 else re.escape(part) for index, part in enumerate(parts))
    )
