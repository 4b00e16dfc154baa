"""From an MLIR location to the ``file:line:col`` that a user can open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from jaxlib.mlir import ir

LIBRARIES = ("/site-packages/", "/dist-packages/")
"""Parts of the paths of installed libraries."""


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


def users_place(location: ir.Location) -> str | None:
    """As ``place``, but of a call stack the innermost frame outside of installed libraries."""
    lines = lines_of(location)
    own = [line for line in lines if not any(part in line for part in LIBRARIES)]
    return own[0] if own and own[0] != lines[0] else place(location)


@dataclass(frozen=True, slots=True)
class Frame:
    """One call of a call stack, as the location of an op has it."""

    function: str
    """``MLP.__call__``; empty where the location does not say."""
    file: str
    line: int
    caller: int
    """Number of the frame that called it; -1 for the outermost."""


class CallStacks:
    """The call stacks of many locations: what they have in common is there once.

    MLIR keeps equal locations as one object, and ops of one line share nearly all of their stack,
    so that each part is read once.
    """

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        """Callers before what they call."""
        self._numbers: dict[Frame, int] = {}
        self._known: dict[tuple[ir.Attribute, int], int] = {}

    def named(self, location: ir.Location) -> tuple[str, int]:
        """JAX's name of an op as of ``op_name``, and the number of the innermost frame.

        That is -1 where no file is named. A name around the location is the op's, not that of a
        function.
        """
        if not isinstance(location, ir.NameLoc):
            return op_name(location), self._stack(location, -1)
        name, child = location.name_str, location.child_loc
        while isinstance(child, ir.NameLoc):
            child = child.child_loc
        return name, self._stack(child, -1)

    def _stack(self, location: ir.Location, caller: int) -> int:
        key = (location.attr, caller)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._read(location, caller)
        return found

    def _read(self, location: ir.Location, caller: int) -> int:
        if isinstance(location, ir.CallSiteLoc):
            return self._stack(location.callee, self._stack(location.caller, caller))
        if isinstance(location, ir.NameLoc):
            child = location.child_loc
            if isinstance(child, ir.FileLineColLoc):
                return self._frame(location.name_str, child, caller)
            return self._stack(child, caller)
        if isinstance(location, ir.FileLineColLoc):
            return self._frame("", location, caller)
        if isinstance(location, ir.FusedLoc):
            parts = cast(list[ir.Location], location.locations)
            stacks = (self._stack(part, caller) for part in parts)
            return next((stack for stack in stacks if stack != caller), caller)
        return caller

    def _frame(self, function: str, location: ir.FileLineColLoc, caller: int) -> int:
        line = location.start_line
        if line == 0 and location.filename == "-":  # a file without lines: bytecode
            return caller
        frame = Frame(function, location.filename, line, caller)
        if frame not in self._numbers:
            self._numbers[frame] = len(self.frames)
            self.frames.append(frame)
        return self._numbers[frame]
