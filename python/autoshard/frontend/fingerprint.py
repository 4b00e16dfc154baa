"""For which program a plan was made, so that it is not taken for another one."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoshard.frontend.lower import Source
from autoshard.ir import mlir, new_context, parse_bytes, print_module
from autoshard.ir.attributes import MARK_GROUP

_DIGEST_BYTES = 4
"""Bytes kept of each line: enough to find the first one that differs; the whole has its own."""
_PLACE = re.compile(r'"([^"]+)":(\d+):\d+')
_PACKAGE = str(Path(__file__).parents[1])
"""What has no line of the user has one of this package, where JAX is asked to lower it."""
_CONSTANT = "stablehlo.constant"
_GROUP = re.compile(rf"({re.escape(MARK_GROUP)} = )(\d+)")
"""The number of a mark, which a process counts."""
_ALIAS = re.compile(r"#loc\d*")


@dataclass(frozen=True)
class LoweredProgram:
    """A program as lowered, whose fingerprint is taken when it is asked for."""

    bytecode: bytes
    mesh: str
    has_mesh: bool
    compiler: str | None

    @classmethod
    def of(cls, source: Source) -> LoweredProgram:
        """What a function was lowered to, and for."""
        return cls(
            bytecode=source.program.bytecode,
            mesh=str(source.machine.mesh),
            has_mesh=source.has_mesh,
            compiler=None if source.cluster is None else str(source.cluster.compiler),
        )

    def fingerprint(self) -> Fingerprint:
        """Takes some time: the program is written as text."""
        text = _text(self.bytecode)
        program = hashlib.sha256("\n".join(text).encode()).hexdigest()
        lines = b"".join(map(_digest, text))
        return Fingerprint(self.mesh, self.has_mesh, self.compiler, program, lines)


@dataclass(frozen=True)
class Fingerprint:
    """The program as lowered, before anything is decided."""

    mesh: str
    """What it was lowered for: ``devices=8``, or the mesh that was given."""
    has_mesh: bool
    """False: the axes of ``mesh`` mean nothing."""
    compiler: str | None
    """Whose habits the plan counts on, ``xla-tpu-0.0.42``; None without a cluster."""
    program: str
    """SHA-256 of the module's text, without locations and without its name."""
    lines: bytes
    """A short digest of each line of that text."""

    def to_json(self) -> dict[str, Any]:
        """As a file of a plan has it."""
        return {
            "mesh": self.mesh,
            "has_mesh": self.has_mesh,
            "compiler": self.compiler,
            "program": self.program,
            "lines": base64.b64encode(gzip.compress(self.lines, mtime=0)).decode(),
        }

    @classmethod
    def from_json(cls, read: Mapping[str, Any]) -> Fingerprint:
        """What ``to_json`` made.

        Raises:
            KeyError, TypeError, ValueError, OSError, EOFError, zlib.error: It is none.
        """
        lines = gzip.decompress(base64.b64decode(read["lines"]))
        return cls(read["mesh"], read["has_mesh"], read["compiler"], read["program"], lines)


def changes_of_program(before: Fingerprint, source: Source) -> list[str]:
    """How a program differs from the one with a fingerprint, an entry a difference.

    The first op that is another one is named with its line; what follows from it is not told.
    """
    now = LoweredProgram.of(source).fingerprint()
    found: list[str] = []
    if before.compiler != now.compiler:
        found.append(f"the compiler was {before.compiler}, it is {now.compiler}")
    if (before.mesh, before.has_mesh) != (now.mesh, now.has_mesh):
        found.append(f"it was lowered for mesh {before.mesh}, it is for {now.mesh}")
    if before.program != now.program:
        found.append(_first_difference(before.lines, source.program.bytecode))
    return found


def changes_of_values(
    before: Sequence[tuple[str, str]], now: Sequence[tuple[str, str]]
) -> list[str]:
    """How named values differ, as ``x was float32[8], it is float32[16]``; at most four of them."""
    old, new = dict(before), dict(now)
    found = [
        f"{name} was {old[name]}, it is {new[name]}"
        for name in old
        if name in new and old[name] != new[name]
    ]
    found += [f"{name} {type_} is gone" for name, type_ in old.items() if name not in new]
    found += [f"{name} {type_} is new" for name, type_ in new.items() if name not in old]
    return found if len(found) <= 4 else [*found[:4], f"{len(found) - 4} more"]


def _first_difference(before: bytes, bytecode: bytes) -> str:
    lines = _text(bytecode)
    old = [before[at : at + _DIGEST_BYTES] for at in range(0, len(before), _DIGEST_BYTES)]
    counts = f"the program had {len(old)} lines of StableHLO, it has {len(lines)}"
    other = [
        number
        for number, (line, digest) in enumerate(zip(lines, old, strict=False))
        if _digest(line) != digest
    ]
    if not other:
        return counts
    places = _Places(bytecode)
    # Constants have the line of the call; the first op behind them says more.
    ops = [number for number in other if _CONSTANT not in lines[number] and places.of(number)]
    number = (ops or other)[0]
    where = places.of(number)
    head = f"{counts}; " if len(lines) != len(old) else "the program is another one: "
    line = _shortened(lines[number].strip())
    return f"{head}the first op that differs is{f' at {where}' if where else ''}: {line}"


class _Places:
    """Lines of the user's code by line of a module's text."""

    def __init__(self, bytecode: bytes) -> None:
        text = print_module(parse_bytes(bytecode, new_context(), "-"), debug_info=True).decode()
        found = [line for line in text.splitlines() if not line.startswith("#loc")]
        self.lines = found[1:]
        self.aliases = dict(
            line.split(" = ", 1) for line in text.splitlines() if line.startswith("#loc")
        )

    def of(self, number: int) -> str | None:
        """``file:line`` of the innermost frame, or None."""
        said = self.lines[number].rpartition("loc(")[2]
        while (place := _PLACE.search(said)) is None:
            alias = _ALIAS.search(said)
            if alias is None or alias[0] not in self.aliases:
                return None
            said = self.aliases[alias[0]]
        return None if place[1].startswith(_PACKAGE) else f"{place[1]}:{place[2]}"


def program_text(module: mlir.Module) -> str:
    """A module's text without locations, its name, and what another process numbers otherwise."""
    text = print_module(module).decode().partition("\n")[2]
    groups: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        return f"{found[1]}{groups.setdefault(found[2], len(groups))}"

    return _GROUP.sub(numbered, text)


def _text(bytecode: bytes) -> list[str]:
    return program_text(parse_bytes(bytecode, new_context(), "-")).splitlines()


def _digest(line: str) -> bytes:
    return hashlib.blake2s(line.encode(), digest_size=_DIGEST_BYTES).digest()


def _shortened(line: str) -> str:
    return line if len(line) <= 120 else line[:117] + ".."
