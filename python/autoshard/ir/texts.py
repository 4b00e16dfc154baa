"""Texts of a module that are no UTF-8, as a damaged file has them.

jaxlib ends the process, or raises nanobind's RuntimeError, when Python reads one as a name, a file
or a string. What a custom call hands to its kernel may be any bytes, and is read as such.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import cast

from jaxlib.mlir import ir

_HIGH_ESCAPE = re.compile(rb"\\[89A-Fa-f][0-9A-Fa-f]")
"""In MLIR text, a byte that is no ASCII."""

_LITERAL = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPE = re.compile(rb"\\([0-9A-Fa-f]{2}|.)", re.DOTALL)
_STRINGS = 0
"""Number of the section of bytecode that holds all strings."""

_CONFIGURATIONS = ("backend_config", "mhlo.backend_config")


def may_have_no_text(data: bytes, is_bytecode: bool) -> bool:
    """Could a module from ``data`` have a text that is no UTF-8? Quick; ``no_text_in`` is sure.

    Args:
        data: MLIR text or bytecode.
        is_bytecode: Which of both.
    """
    if not is_bytecode:
        return _HIGH_ESCAPE.search(data) is not None
    try:
        strings = _string_section(data)
    except IndexError:
        return True  # it is damaged
    return not _is_text(strings)


def no_text_in(module: ir.Module) -> str | None:
    """A text of the module that is no UTF-8, as MLIR prints it; None if there is none."""
    raw = {one for operation in _operations(module.operation) for one in _handed_over(operation)}
    printed = cast(
        bytes,
        module.operation.get_asm(binary=True, enable_debug_info=True, print_generic_op_form=True),
    )
    for literal in _LITERAL.finditer(printed):
        text = _ESCAPE.sub(_unescaped, literal.group(1))
        if not _is_text(text) and text not in raw:
            return literal.group().decode(errors="replace")
    return None


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _unescaped(found: re.Match[bytes]) -> bytes:
    escaped = found.group(1)
    return bytes.fromhex(escaped.decode()) if len(escaped) == 2 else escaped


def _operations(operation: ir.Operation) -> Iterator[ir.Operation]:
    yield operation
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from _operations(inner.operation)


def _handed_over(operation: ir.Operation) -> Iterator[bytes]:
    """Strings that a custom call hands to its kernel."""
    if operation.name != "stablehlo.custom_call":
        return
    for name in _CONFIGURATIONS:
        if name in operation.attributes:
            yield from _strings_of(operation.attributes[name])


def _strings_of(attribute: ir.Attribute) -> Iterator[bytes]:
    if isinstance(attribute, ir.StringAttr):
        yield attribute.value_bytes
    elif isinstance(attribute, ir.DictAttr):
        for number in range(len(attribute)):
            yield from _strings_of(attribute[number].attr)
    elif isinstance(attribute, ir.ArrayAttr):
        for inner in attribute:
            yield from _strings_of(inner)


def _string_section(data: bytes) -> bytes:
    """All strings of bytecode, one behind the other.

    Raises:
        IndexError: The bytecode is cut off.

    Source:
        https://mlir.llvm.org/docs/BytecodeFormat
    """
    _, at = _number(data, len(b"ML\xefR"))  # the version
    producer_ends = data.find(b"\0", at)
    at = producer_ends + 1 if producer_ends >= 0 else len(data)
    while True:
        kind = data[at]
        length, at = _number(data, at + 1)
        if kind & 0x80:  # aligned
            alignment, at = _number(data, at)
            at += -at % alignment if alignment else 0
        if kind & 0x7F == _STRINGS:
            count, start = _number(data, at)
            for _ in range(count):
                _, start = _number(data, start)
            return data[start : at + length]
        at += length


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends; zeros at the end of its first byte tell how many follow it."""
    first = data[at]
    if first == 0:
        end = at + 9
        return int.from_bytes(data[at + 1 : end], "little"), end
    more = (first & -first).bit_length() - 1
    end = at + 1 + more
    return int.from_bytes(data[at:end], "little") >> (more + 1), end
