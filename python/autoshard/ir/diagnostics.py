"""What MLIR has to say about a module, as plain records."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, cast

from jaxlib.mlir import ir

from autoshard.errors import AutoshardWarning
from autoshard.ir.locations import place

Severity = Literal["error", "warning", "note", "remark"]


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One message about one place."""

    severity: Severity
    message: str
    place: str | None
    """``file:line:col``; None when MLIR does not know."""
    notes: tuple[Diagnostic, ...] = ()


_SEVERITIES: dict[ir.DiagnosticSeverity, Severity] = {
    ir.DiagnosticSeverity.ERROR: "error",
    ir.DiagnosticSeverity.WARNING: "warning",
    ir.DiagnosticSeverity.NOTE: "note",
    ir.DiagnosticSeverity.REMARK: "remark",
}


def to_diagnostic(found: ir.DiagnosticInfo | ir.Diagnostic) -> Diagnostic:
    """A record of one of MLIR's diagnostics."""
    # A diagnostic's location has only the base class; its attribute knows the real one.
    return Diagnostic(
        severity=_SEVERITIES[found.severity],
        message=_readable(lambda: found.message) or "MLIR's message is no UTF-8 text",
        place=_readable(
            lambda: place(ir.Location.from_attr(found.location.attr, found.location.context))
        ),
        notes=tuple(to_diagnostic(note) for note in found.notes),
    )


def _readable(read: Callable[[], str | None]) -> str | None:
    """A text of MLIR's; None where it is no UTF-8, as in damaged bytecode."""
    try:
        return read()
    except (RuntimeError, UnicodeDecodeError):  # as nanobind says it
        return None


def diagnostics_of(error: ir.MLIRError) -> tuple[Diagnostic, ...]:
    """Every diagnostic behind an MLIRError; the error's own text when it has none."""
    found = tuple(to_diagnostic(diagnostic) for diagnostic in error.error_diagnostics)
    return found or (Diagnostic("error", error.message.strip(), None),)


def warn(message: str, location: ir.Location | None = None) -> None:
    """Tell the user something about a place, and go on.

    The message reaches the user as a Python warning; ``autoshard-opt`` prints it as
    ``file:line:col: warning: message``.
    """
    where = None if location is None else place(location)
    warnings.warn(AutoshardWarning(message, where), stacklevel=2)


@contextmanager
def reading_errors(context: ir.Context) -> Generator[list[Diagnostic]]:
    """The errors that MLIR finds within, as they come.

    Those that an MLIRError would carry are among them: where a message is no UTF-8, as of damaged
    bytecode, jaxlib 0.10.2 to 0.12.0.1 end the process while they make that exception.
    """
    found: list[Diagnostic] = []

    def handle(said: ir.Diagnostic) -> bool:
        if said.severity != ir.DiagnosticSeverity.ERROR:
            return False  # for whoever listens to those
        found.append(to_diagnostic(said))
        return True

    emits = context.emit_error_diagnostics
    context.emit_error_diagnostics = True
    handler = cast(ir.DiagnosticHandler, context.attach_diagnostic_handler(handle))
    try:
        yield found
    finally:
        handler.detach()
        context.emit_error_diagnostics = emits


@contextmanager
def diagnostics_to(context: ir.Context, sink: Callable[[Diagnostic], None]) -> Generator[None]:
    """Send what MLIR reports outside an MLIRError (warnings, remarks) to ``sink``."""

    def handle(found: ir.Diagnostic) -> bool:
        sink(to_diagnostic(found))
        return True

    handler = cast(ir.DiagnosticHandler, context.attach_diagnostic_handler(handle))
    try:
        yield
    finally:
        handler.detach()
