"""Messages of passes, as MLIR prints them: place, sentence, the line of the input, a caret."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from autoshard.cli.opt_driver.files import Chunk
from autoshard.errors import AutoshardError, AutoshardWarning, PassError
from autoshard.ir.diagnostics import Diagnostic

_DASH_PLACE = re.compile(r"(?<![^\s(\"'])-(?=:\d+:\d+)")
_PLACE = re.compile(r"^(?P<file>.*?):(?P<line>\d+)(?::(?P<column>\d+))?$")


@contextmanager
def warnings_to(found: list[Diagnostic]) -> Generator[None]:
    """Collect autoshard's warnings; other libraries' warnings stay Python's."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: object = None,
        line: str | None = None,
    ) -> None:
        if isinstance(message, AutoshardWarning):
            found.append(Diagnostic("warning", message.message, message.location))
        else:
            print(warnings.formatwarning(message, category, filename, lineno), file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always", AutoshardWarning)
        warnings.showwarning = show
        yield


def diagnostic_of(error: AutoshardError) -> Diagnostic:
    """An error as the passes' other messages are."""
    notes = error.notes if isinstance(error, PassError) else ()
    return Diagnostic(
        "error",
        error.message,
        error.location,
        tuple(Diagnostic("note", text, where) for text, where in notes),
    )


def in_file(diagnostic: Diagnostic, name: str) -> Diagnostic:
    """The diagnostic with the file's name where MLIR writes ``-``, or nothing."""
    where = name if diagnostic.place is None else _DASH_PLACE.sub(lambda _: name, diagnostic.place)
    return Diagnostic(
        diagnostic.severity,
        _DASH_PLACE.sub(lambda _: name, diagnostic.message),
        where,
        tuple(in_file(note, name) for note in diagnostic.notes),
    )


def print_diagnostics(diagnostics: Iterable[Diagnostic], chunk: Chunk) -> None:
    """Print them to standard error, each with its notes and the line that it is about."""
    for diagnostic in diagnostics:
        print(f"{diagnostic.place}: {diagnostic.severity}: {diagnostic.message}", file=sys.stderr)
        if diagnostic.place is not None and (source := _source_line(diagnostic.place, chunk)):
            print(source, file=sys.stderr)
        print_diagnostics(diagnostic.notes, chunk)


def _source_line(where: str, chunk: Chunk) -> str | None:
    """The line of the input at a place and a caret under its column, as MLIR prints them."""
    found = _PLACE.match(where)
    text = chunk.text
    if found is None or text is None or found["file"] != chunk.name or found["column"] is None:
        return None
    lines = text.split("\n")
    line, column = int(found["line"]), int(found["column"])
    if not 0 < line <= len(lines) or column == 0:
        return None
    source = lines[line - 1]
    if len(source) > 200:
        return None  # a constant's line; the caret would be lost in it
    return f"{source}\n{' ' * (column - 1)}^"
