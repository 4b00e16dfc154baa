"""Modules of the input, and the output."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from autoshard.cli.opt_driver.settings import Settings
from autoshard.errors import ParseError, PassOptionError
from autoshard.ir import read_bytes
from autoshard.ir.module import BYTECODE_MAGIC
from autoshard.writing import write_file

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
