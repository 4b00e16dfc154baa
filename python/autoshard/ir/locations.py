"""From an MLIR location to the ``file:line:col`` that a user can open."""

from __future__ import annotations

from typing import cast

from jaxlib.mlir import ir


def place(location: ir.Location) -> str | None:
    """Where the user wrote it: ``file:line:col``, or None when the location names no file.

    Of a call stack the innermost frame counts (JAX has already left its own frames out), of a
    fused location the first part that names a file. An op read from MLIR text without locations
    is placed in that text, whose name is ``-``: MLIR does not know the file.
    """
    if isinstance(location, ir.FileLineColLoc):
        if location.start_line == 0:  # a file without lines: bytecode
            return None if location.filename == "-" else location.filename
        return f"{location.filename}:{location.start_line}:{location.start_col}"
    if isinstance(location, ir.NameLoc):
        return place(location.child_loc)
    if isinstance(location, ir.CallSiteLoc):
        return place(location.callee) or place(location.caller)
    if isinstance(location, ir.FusedLoc):
        parts = cast(list[ir.Location], location.locations)
        return next((found for part in parts if (found := place(part))), None)
    return None


def op_name(location: ir.Location) -> str:
    """JAX's name of an op, ``jit(f)/dot_general``; empty when the location has none."""
    if isinstance(location, ir.NameLoc):
        return location.name_str
    if isinstance(location, ir.CallSiteLoc):
        return op_name(location.callee)
    return ""


def lines_of(location: ir.Location) -> list[str]:
    """``file:line`` of every frame of the call stack that a location keeps."""
    if isinstance(location, ir.FileLineColLoc):
        return [f"{location.filename}:{location.start_line}"]
    if isinstance(location, ir.NameLoc):
        return lines_of(location.child_loc)
    if isinstance(location, ir.CallSiteLoc):
        return [*lines_of(location.callee), *lines_of(location.caller)]
    if isinstance(location, ir.FusedLoc):
        parts = cast(list[ir.Location], location.locations)
        return [line for part in parts for line in lines_of(part)]
    return []
