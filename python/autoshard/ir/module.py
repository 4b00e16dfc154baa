"""Parse and print StableHLO modules: pretty text, generic text and bytecode."""

from __future__ import annotations

import gzip
import io
import re
import sys
import zlib
from pathlib import Path
from typing import Literal, cast

from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext as jax_extension  # pyright: ignore[reportPrivateUsage]
from jaxlib.mlir._mlir_libs import _sdyMpmd as mpmd  # pyright: ignore[reportPrivateUsage]
from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

from autoshard.errors import ParseError
from autoshard.ir.attributes import NUM_PARTITIONS, NUM_REPLICAS
from autoshard.ir.diagnostics import Diagnostic, diagnostics_of, reading_errors
from autoshard.ir.texts import may_have_no_text, no_text_in

Emit = Literal["text", "generic", "bytecode"]

BYTECODE_MAGIC = b"ML\xefR"
"""The first bytes of every MLIR bytecode file."""

_PORTABLE_MAGIC = BYTECODE_MAGIC + b"\rStableHLO_v"
_GZIP_MAGIC = b"\x1f\x8b"
_registry: ir.DialectRegistry | None = None


def new_context() -> ir.Context:
    """A context that knows every dialect JAX lowers to, without importing jax itself.

    Also that of Shardy's pipelines, of which the module with classes for its ops takes 15 ms to
    import, and is not needed. Loaded are those whose ops autoshard makes; a module or a pass that
    has others loads them, for all of them take 2 ms.
    """
    global _registry
    if _registry is None:
        _registry = ir.DialectRegistry()
        jax_extension.register_dialects(_registry)
    context = ir.Context()
    context.append_dialect_registry(_registry)
    context.get_dialect_descriptor("func")
    sdy.register_dialect(context)
    mpmd.register_dialect(context)
    mhlo.register_mhlo_dialect(context)
    chlo.register_dialect(context)
    stablehlo.register_dialect(context)
    return context


def parse_bytes(
    data: bytes, context: ir.Context, name: str = "<input>", text_file: str | None = None
) -> ir.Module:
    """Parse text (pretty or generic) or bytecode; locations are kept.

    Bytecode may be a portable artifact, as ``jax.export`` writes it.

    Args:
        data: The module; bytecode is known by its first four bytes.
        context: Where the module lives.
        name: The file name that errors show.
        text_file: The file that ``data`` is, when it is one: ops that have no location get their
            place in it, instead of a place in ``-``.

    Raises:
        ParseError: ``name:line:col: error`` as MLIR reports it.
    """
    said: list[Diagnostic] = []
    try:
        with context, ir.Location.unknown(context), reading_errors(context) as said:
            module = _parsed(data, context, text_file)
    except UnicodeDecodeError as error:
        raise ParseError(
            "neither MLIR bytecode nor UTF-8 text. Give a StableHLO module as text or bytecode.",
            name,
        ) from error
    except ir.MLIRError as error:
        raise _parse_error((*said, *diagnostics_of(error))[0], name) from error
    except ValueError as error:  # bytecode that asks for more than can be
        raise ParseError(f"the bytecode is damaged: {error}", name) from error
    if may_have_no_text(data, data.startswith(BYTECODE_MAGIC)):
        found = no_text_in(module)
        if found is not None:
            raise ParseError(f"{found} is no UTF-8 text: the file is damaged.", name)
    return module


def parse_given(
    data: bytes, context: ir.Context, name: str, text_file: str | None = None
) -> ir.Module:
    """As ``parse_bytes``, of what a user gives: damaged bytecode cannot end this process.

    Bytecode is read twice, first in a process that is started for it, which takes some 0.4 s.

    Raises:
        ParseError: ``name:line:col: error``; also where the reader ended that process.
    """
    # Imported here: it is the program of the process that it starts.
    from autoshard.ir.given_bytecode import check_bytecode

    if data.startswith(BYTECODE_MAGIC):
        check_bytecode(data, name)
    return parse_bytes(data, context, name, text_file)


def _parsed(data: bytes, context: ir.Context, text_file: str | None) -> ir.Module:
    if data.startswith(_PORTABLE_MAGIC):
        return stablehlo.deserialize_portable_artifact(context, data)
    if data.startswith(BYTECODE_MAGIC):
        return ir.Module.parse(data)
    text = data.decode("utf-8")
    return ir.Module.parse(text) if text_file is None else ir.Module.parseFile(text_file)


def _parse_error(first: Diagnostic, name: str) -> ParseError:
    """``file:line:col: message``; MLIR calls its input ``-``."""
    where = name if first.place is None else re.sub(r"^-(?=:)", lambda _: name, first.place)
    return ParseError(first.message, where)


def read_bytes(path: str | Path) -> tuple[bytes, bool]:
    """What is in a file, unpacked when it is ``.gz``, and whether it was packed.

    Args:
        path: The file; ``-`` is standard input.

    Raises:
        ParseError: The file cannot be opened or unpacked.
    """
    name = "<stdin>" if str(path) == "-" else str(path)
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else Path(path).read_bytes()
        if data.startswith(_GZIP_MAGIC):
            return gzip.decompress(data), True
        return data, False
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ParseError(f"cannot unpack: {error}", name) from error
    except OSError as error:
        raise ParseError(f"cannot read: {error.strerror}", name) from error


def parse_file(path: str | Path, context: ir.Context) -> ir.Module:
    """Parse a ``.mlir``, ``.mlirbc`` or ``.mlir.gz`` file; ``-`` is standard input.

    Raises:
        ParseError: The file cannot be opened or is not a module.
    """
    data, packed = read_bytes(path)
    if str(path) == "-":
        return parse_given(data, context, "<stdin>")
    return parse_given(data, context, str(path), None if packed else str(path))


def print_module(module: ir.Module, emit: Emit = "text", debug_info: bool = False) -> bytes:
    """The module as text, generic text or bytecode. Bytecode always keeps locations."""
    if emit == "bytecode":
        buffer = io.BytesIO()
        module.operation.write_bytecode(buffer)
        return buffer.getvalue()
    text = cast(
        str,
        module.operation.get_asm(
            enable_debug_info=debug_info, print_generic_op_form=emit == "generic"
        ),
    )
    return (text.rstrip("\n") + "\n").encode()


def take_contents(module: ir.Module, other: ir.Module) -> None:
    """Move the attributes and ops of another module of the same context to ``module``."""
    attributes, others = module.operation.attributes, other.operation.attributes
    for name in [attributes[number].name for number in range(len(attributes))]:
        del attributes[name]
    for number in range(len(others)):
        attributes[others[number].name] = others[number].attr
    for op in list(module.body.operations):
        op.operation.erase()
    for op in list(other.body.operations):
        module.body.append(op.operation)


_STRUCTURE_VERSION = 6
"""Version of MLIR's bytecode: the one that passes/importer/bytecode.h reads."""


def structure_of(module: ir.Module) -> bytes:
    """The module as bytecode of the version that the core reads."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer, desired_version=_STRUCTURE_VERSION)
    return buffer.getvalue()


def is_of_one_device(module: ir.Module) -> bool:
    """Whether a module was lowered for one device.

    It says so itself; of one that does not, no mesh may have more. A mesh that somebody wrote into
    it later, with shardings of arguments over it, changes nothing of what its ops mean.
    """
    attributes = module.operation.attributes
    counts = [
        ir.IntegerAttr(attributes[name]).value
        for name in (NUM_PARTITIONS, NUM_REPLICAS)
        if name in attributes
    ]
    return all(count == 1 for count in counts) if counts else not has_large_mesh(module)


def has_large_mesh(module: ir.Module) -> bool:
    """Whether a module has a mesh of several devices."""
    meshes = [op.operation for op in module.body.operations if op.operation.name == "sdy.mesh"]
    axes = [axis for op in meshes for axis in sdy.MeshAttr(op.attributes["mesh"]).axes]
    return any(sdy.MeshAxisAttr(axis).size > 1 for axis in axes)


def module_of(op: ir.Operation) -> ir.Operation:
    """The module that ``op`` is in."""
    found: ir.Operation | None = op
    while found is not None and found.name != "builtin.module":
        found = found.parent
    assert found is not None, f"{op.name} is in no module"
    return found


def functions_of(module: ir.Module) -> dict[str, ir.Operation]:
    """The functions of a module, by name."""
    return {
        ir.StringAttr(op.operation.attributes["sym_name"]).value: op.operation
        for op in module.body.operations
        if op.operation.name == "func.func"
    }


def calls_of(module: ir.Operation) -> dict[str, list[ir.Operation]]:
    """The calls of each function, by its name; functions that nobody calls are missing."""
    found: dict[str, list[ir.Operation]] = {}
    for op in operations_of(module):
        if op.name == "func.call":
            name = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
            found.setdefault(name, []).append(op)
    return found


def operations_of(root: ir.Operation) -> list[ir.Operation]:
    """``root`` and every op below it in program order, outer before inner."""
    found: list[ir.Operation] = []
    append, advance = found.append, ir.WalkResult.ADVANCE

    def visit(op: ir.Operation) -> ir.WalkResult:
        append(op)
        return advance

    root.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found


def with_its_ops(op: ir.Operation) -> list[ir.Operation]:
    """As ``operations_of``, for one op of many: nearly all of them have no regions."""
    return operations_of(op) if len(op.regions) else [op]


def operations_to_plan(root: ir.Operation) -> list[ir.Operation]:
    """Every op below ``root`` in program order, outer before inner.

    The bodies of manual computations are left out.
    """
    found: list[ir.Operation] = []
    advance, skip = ir.WalkResult.ADVANCE, ir.WalkResult.SKIP

    def visit(op: ir.Operation) -> ir.WalkResult:
        found.append(op)
        return skip if op.name == "sdy.manual_computation" else advance

    root.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found[1:]
