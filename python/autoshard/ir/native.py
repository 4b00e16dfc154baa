"""Run the passes that jaxlib brings: MLIR's own and Shardy's.

Checked on jaxlib 0.10.2 and 0.12.0.1. A pass that is known to kill its process runs in a process
of its own (``isolated``).
"""

from __future__ import annotations

import functools
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Generator
from contextlib import contextmanager

from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

from autoshard.errors import AutoshardWarning, PassError, PassOptionError
from autoshard.ir.diagnostics import Diagnostic, diagnostics_of, diagnostics_to
from autoshard.ir.module import new_context

_NOT_REGISTERED = re.compile(r"'([^']*)' does not refer to a registered pass")
_WRONG_ANCHOR = re.compile(r"restricted to '([^']*)' on a PassManager intended to run on '([^']*)'")
_BAD_VALUE = re.compile(r"for the --(\S+) option: (?:Cannot find option named )?'([^']*)'")
_NO_SUCH_OPTION = re.compile(r"no such option (\S+)")


@functools.cache
def native_options(name: str) -> str:
    """The options of one of jaxlib's passes with their defaults, ``a=1 b=false``.

    Empty for a pass without options, for a pipeline and for a pass that jaxlib does not have.
    """
    if not is_native(name):
        return ""
    found = _parse(f"{anchors_of(name)[-1]}({name})")
    inner = found.partition("(")[2].removesuffix(")")
    text = inner.removeprefix(f"{name}{{").removesuffix("}")
    return " ".join(text.split()) if inner.startswith(f"{name}{{") else ""


@functools.cache
def is_native(name: str) -> bool:
    """Whether jaxlib has a pass or a pipeline of this name."""
    try:
        _parse(f"builtin.module({name})")
    except UnknownNativePassError:
        return False
    except PassOptionError:
        return True
    return True


@functools.cache
def anchors_of(name: str) -> tuple[str, ...]:
    """Where a pass of jaxlib runs: ``("builtin.module",)`` or ``("builtin.module", "func.func")``.

    Raises:
        UnknownNativePassError: jaxlib has no such pass.
    """
    try:
        _parse(f"builtin.module({name})")
    except WrongAnchorError as error:
        return ("builtin.module", error.needed)
    return ("builtin.module",)


@functools.cache
def check_native(anchors: tuple[str, ...], name: str, options: str) -> None:
    """Refuse a pass that jaxlib would not run as it is written.

    Args:
        anchors: The ops around it, ``("builtin.module", "func.func")``.
        name: The pass.
        options: Its options as text.

    Raises:
        UnknownNativePassError: jaxlib has no such pass.
        WrongAnchorError: The pass does not run on the innermost anchor.
        PassOptionError: An option the pass does not have, or a value it does not take.
    """
    # jaxlib ends the process when a pipeline of module passes stands under another op.
    if anchors != ("builtin.module",) and is_native(name) and _is_pipeline(name):
        raise WrongAnchorError("builtin.module", anchors[-1])
    _parse(nested(anchors, name, options))


def nested(anchors: tuple[str, ...], name: str, options: str = "") -> str:
    """The pipeline text that runs one pass: ``builtin.module(func.func(name{options}))``."""
    braces = f"{{{options}}}" if options else ""
    return "(".join([*anchors, name]) + braces + ")" * len(anchors)


def _is_pipeline(name: str) -> bool:
    """Whether jaxlib replaces ``name`` by a list of passes."""
    anchor = anchors_of(name)[-1]
    return not _parse(f"{anchor}({name})").startswith(f"{anchor}({name}")


def _parse(pipeline: str) -> str:
    """The pipeline with every option of every pass spelled out, as jaxlib prints it."""
    with _captured_stderr() as printed:
        try:
            return str(PassManager.parse(pipeline, new_context()))
        except ValueError as error:
            said = str(error)
    # LLVM prints a bad option value itself, where no handler sees it.
    said = "\n".join([*printed, said])
    if unknown := _NOT_REGISTERED.search(said):
        raise UnknownNativePassError(unknown[1])
    if anchor := _WRONG_ANCHOR.search(said):
        raise WrongAnchorError(anchor[1], anchor[2])
    if option := _NO_SUCH_OPTION.search(said):
        raise PassOptionError(f'unknown option "{option[1]}"')
    if value := _BAD_VALUE.search(said):
        raise PassOptionError(f'option {value[1]} does not take "{value[2]}"')
    raise PassOptionError(" ".join(said.split()))


class UnknownNativePassError(PassOptionError):
    """jaxlib has no pass of this name.

    Attributes:
        name: The name.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f'unknown pass "{name}"')
        self.name = name


class WrongAnchorError(PassOptionError):
    """A pass stands under an op it does not run on.

    Attributes:
        needed: The op it runs on, such as ``func.func``.
        found: The op it stands under.
    """

    def __init__(self, needed: str, found: str) -> None:
        way_out = f"Write {needed}(...) around it"
        if needed == "builtin.module":
            way_out = f"Move it out of {found}(...)"
        super().__init__(f"runs on {needed}, not on {found}. {way_out}")
        self.needed = needed
        self.found = found


def run_native(module: ir.Module, pipeline: str, *, verify: bool = True) -> None:
    """Run a pipeline of jaxlib's passes on ``module`` in place.

    Warnings of the passes become Python warnings.

    Args:
        module: Changed in place; after an error it must not be used.
        pipeline: ``builtin.module(...)``.
        verify: Check the module after each pass, which takes longer than most passes. False for
            passes inside of another one, after which the module is checked.

    Raises:
        PassError: A pass failed.
    """
    said: list[Diagnostic] = []
    manager = PassManager.parse(pipeline, module.context)
    manager.enable_verifier(verify)
    try:
        with diagnostics_to(module.context, said.append):
            manager.run(module.operation)
    except ir.MLIRError as error:
        raise pass_error(diagnostics_of(error)) from error
    for diagnostic in said:
        warnings.warn(AutoshardWarning(diagnostic.message, diagnostic.place), stacklevel=2)


def verify(module: ir.Module) -> None:
    """Check that ``module`` is valid MLIR.

    Raises:
        PassError: It is not.
    """
    try:
        module.operation.verify()
    except ir.MLIRError as error:
        raise pass_error(diagnostics_of(error)) from error


def pass_error(diagnostics: tuple[Diagnostic, ...]) -> PassError:
    """The first diagnostic as an error; its notes and the other diagnostics as notes."""
    first, *others = diagnostics
    rest = [*first.notes, *others]
    return PassError(first.message, first.place, tuple((note.message, note.place) for note in rest))


@contextmanager
def _captured_stderr() -> Generator[list[str]]:
    """What C++ prints to file descriptor 2 meanwhile, in place of the user's terminal.

    Yields:
        A list; its one item, the text, is there when the block has ended.
    """
    sys.stderr.flush()
    saved = os.dup(2)
    text: list[str] = []
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield text
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            text.append(file.read().decode(errors="replace"))
