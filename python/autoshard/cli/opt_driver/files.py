"""Modules of the input, and files that are written all at once or not at all."""

from __future__ import annotations

import os
import re
import stat
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from autoshard.cli.opt_driver.settings import Settings
from autoshard.errors import OutputError, ParseError, PassOptionError
from autoshard.ir import read_bytes
from autoshard.ir.module import BYTECODE_MAGIC

_SPLIT = re.compile(r"^// -----[^\n]*\n?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One module of the input."""

    data: bytes
    """Text is preceded by empty lines, so that its line numbers are those of the file."""
    name: str
    """The file, for messages."""
    text_file: str | None = None
    """The file, when it holds just ``data``."""

    @property
    def text(self) -> str | None:
        """The text of the chunk; None for bytecode."""
        if self.data.startswith(BYTECODE_MAGIC):
            return None
        return self.data.decode("utf-8", errors="replace")


def read_chunks(settings: Settings) -> list[Chunk]:
    """The modules of the input.

    Raises:
        ParseError: The file cannot be read, or is not text although it shall be split.
    """
    data, packed = read_bytes(settings.input)
    name = "<stdin>" if settings.input == "-" else settings.input
    if not settings.split:
        in_file = not packed and settings.input != "-"
        return [Chunk(data, name, name if in_file else None)]
    if data.startswith(BYTECODE_MAGIC):
        raise ParseError("--split-input-file: bytecode holds one module. Leave it out.", name)
    chunks: list[Chunk] = []
    start = line = 0
    text = data.decode("utf-8", errors="surrogateescape")
    for end, after in [*((m.start(), m.end()) for m in _SPLIT.finditer(text)), (len(text),) * 2]:
        piece = "\n" * line + text[start:end]
        chunks.append(Chunk(piece.encode("utf-8", errors="surrogateescape"), name))
        line += text.count("\n", start, after)
        start = after
    return chunks


def write_output(data: bytes, settings: Settings) -> None:
    """Write to the output: a file all at once or not at all.

    Raises:
        OutputError: The file cannot be written.
        PassOptionError: Bytecode would go to a terminal.
    """
    if settings.output is None or settings.output == "-":
        if settings.emit == "bytecode" and sys.stdout.isatty():
            raise PassOptionError("bytecode would go to a terminal. Use -o FILE or a pipe.")
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    write_file(settings.output, data)


def write_file(path: str, data: bytes) -> None:
    """Write a file all at once or not at all.

    Raises:
        OutputError: It cannot be written.
    """
    try:
        _write_atomically(Path(path), data)
    except OSError as error:
        raise OutputError(f"cannot write: {error.strerror}", path) from error


def _write_atomically(path: Path, data: bytes) -> None:
    """Replace ``path``, keeping its permissions; a device or pipe is written to as it is."""
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    path = path.resolve()
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as new:
        try:
            new.write(data)
            new.flush()
            os.fchmod(new.fileno(), _mode_for(path))
            os.replace(new.name, path)
        except BaseException:
            os.unlink(new.name)
            raise


def _mode_for(path: Path) -> int:
    """The permissions of the file, or those that a new file gets."""
    if path.exists():
        return stat.S_IMODE(path.stat().st_mode)
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
