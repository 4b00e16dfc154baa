"""What autoshard-opt does: read the command line and the modules, run passes, write, report."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import stat
import sys
import tempfile
import textwrap
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, cast

from autoshard.cli.expected_diagnostics import check_diagnostics
from autoshard.errors import (
    AutoshardError,
    AutoshardWarning,
    OutputError,
    ParseError,
    PassError,
    PassOptionError,
    PlanError,
    ShardingError,
)
from autoshard.ir import mlir, new_context, parse_bytes, place, print_module, read_bytes
from autoshard.ir.attributes import MESH
from autoshard.ir.diagnostics import Diagnostic
from autoshard.ir.module import BYTECODE_MAGIC, Emit
from autoshard.ir.native import is_native, native_options
from autoshard.ir.native_passes import NATIVE_SUMMARIES
from autoshard.passes.base import nearest, options_of, summary_of
from autoshard.passes.pipeline import (
    Step,
    is_pass,
    parse_pass,
    parse_pipeline,
    run_passes,
)
from autoshard.passes.registry import ALL_PASSES, pass_type
from autoshard.report.plan_json import plan_json

PROGRAM = "autoshard-opt"

_SPLIT = re.compile(r"^// -----[^\n]*\n?", re.MULTILINE)
_DASH_PLACE = re.compile(r"(?<![^\s(\"'])-(?=:\d+:\d+)")
_PLACE = re.compile(r"^(?P<file>.*?):(?P<line>\d+)(?::(?P<column>\d+))?$")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line asks for."""

    input: str
    output: str | None
    emit: Emit
    mesh: str | None
    plan_json: str | None
    """Where the summary of the plan goes."""
    steps: tuple[Step, ...]
    split: bool
    verify_diagnostics: bool
    print_after_all: bool
    debug_info: bool
    timing: bool


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


@dataclass(slots=True)
class Timing:
    """Seconds spent, by what on."""

    rows: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])

    def add(self, what: str, seconds: float) -> None:
        """Add a row."""
        self.rows.append((what, seconds))

    @contextmanager
    def measure(self, what: str) -> Generator[None]:
        """Add a row with the time that the block takes."""
        start = time.perf_counter()
        yield
        self.add(what, time.perf_counter() - start)

    def table(self) -> str:
        """Rows as text, with their share of the sum."""
        total = sum(seconds for _, seconds in self.rows)
        lines = ["===- autoshard-opt timing -==="]
        for what, seconds in [*self.rows, ("total", total)]:
            share = 100 * seconds / total if total else 0.0
            lines.append(f"{seconds:10.4f} s {share:5.1f}%  {what}")
        return "\n".join(lines)


def run_command(arguments: Sequence[str], report: Callable[[str], None]) -> int:
    """Run the command.

    Args:
        arguments: Without the program's name.
        report: Called with ``FILE: error: STEP`` before each step, so that it is known should the
            step end the process.

    Returns:
        The exit code: 0, or 1 when something was wrong.
    """
    words = list(arguments)
    try:
        return _run_command(words, report)
    except AutoshardError as error:
        where = error.location or PROGRAM
        print(f"{where}: error: {error.message}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of our output has gone; what is still buffered goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if _parser().parse_known_args(words)[0].debug:
            traceback.print_exc()
        print(
            f"{PROGRAM}: error: internal error: {type(error).__name__}: {error}. Please report "
            "it with the input; --debug shows where it happened.",
            file=sys.stderr,
        )
        return 1


def _run_command(words: list[str], report: Callable[[str], None]) -> int:
    answer = next((_ANSWERS[word] for word in words if word in _ANSWERS), None)
    if answer is not None:
        print(answer())
        return 0
    settings = _read_settings(words)
    timing = Timing()
    with timing.measure("read"):
        chunks = _read_chunks(settings)
    results = [_run_chunk(chunk, settings, timing, report) for chunk in chunks]
    if settings.timing:
        print(timing.table(), file=sys.stderr)
    if not all(result.ok for result in results):
        return 1
    outputs = [result.output for result in results if result.output is not None]
    if settings.plan_json is not None:
        assert results[0].plan_json is not None
        _write_file(settings.plan_json, results[0].plan_json)
    _write(b"// -----\n".join(outputs), settings)
    return 0


# The command line


class _Parser(argparse.ArgumentParser):
    """argparse, but errors are ours: one line, exit code 1."""

    def error(self, message: str) -> NoReturn:
        raise PassOptionError(f"{message}. {PROGRAM} --help shows how it is used.")


def _parser() -> _Parser:
    parser = _Parser(
        prog=PROGRAM,
        description="Run compiler passes on a StableHLO module: autoshard's own and jaxlib's "
        "(MLIR and Shardy), in the order in which they are given.",
        usage=f"{PROGRAM} [options] [--PASS[='option=value ...'] ...] [FILE]",
        add_help=False,
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.HelpFormatter(
            prog, max_help_position=30, width=_width()
        ),
    )
    parser.add_argument(
        "input",
        nargs="?",
        default="-",
        metavar="FILE",
        help="module as MLIR text or bytecode, plain or .gz; standard input when missing or -",
    )
    add = parser.add_argument_group("options").add_argument
    add("-o", dest="output", metavar="FILE", help="write here; nothing is written on error")
    add(
        "--emit",
        choices=("text", "generic", "bytecode"),
        default="text",
        help="form of the output (default: text)",
    )
    add(
        "--pass-pipeline",
        metavar="TEXT",
        help="passes as in MLIR: 'builtin.module(a{x=1 y=2},func.func(b))'; instead of pass flags",
    )
    add(
        "--mesh",
        metavar="AXES",
        help="the device mesh, dp=2,tp=4 (first axis outermost); written on the module",
    )
    add(
        "--split-input-file",
        action="store_true",
        help="the input holds several modules, separated by lines // -----",
    )
    add(
        "--verify-diagnostics",
        action="store_true",
        help="compare messages with comments // expected-error@+1 {{text}} of the input",
    )
    add(
        "--plan-json",
        metavar="FILE",
        help="write what the plan costs as JSON: seconds, memory, collectives with their lines",
    )
    add("--mlir-print-ir-after-all", action="store_true", help="print the module after each pass")
    add("--mlir-print-debuginfo", action="store_true", help="print locations")
    add("--mlir-timing", action="store_true", help="print how long each pass took")
    add("--list-passes", action="store_true", help="list all passes with their options, and end")
    add("--debug", action="store_true", help="print a traceback after an internal error")
    add("--version", action="store_true", help="print the versions of autoshard and jaxlib")
    add("-h", "--help", action="store_true", help="print this, and end")
    return parser


def _driver_flags(parser: argparse.ArgumentParser) -> frozenset[str]:
    actions = parser._actions  # pyright: ignore[reportPrivateUsage]
    return frozenset(flag for action in actions for flag in action.option_strings)


def _read_settings(words: list[str]) -> Settings:
    """The settings of a command line.

    Raises:
        PassOptionError: An unknown flag, pass or option, or a value that is not taken.
        ParseError: The pipeline is not one.
    """
    parser = _parser()
    driver_words, pass_words = _separate(words, _driver_flags(parser))
    found = parser.parse_args(driver_words)
    if pass_words and found.pass_pipeline is not None:
        raise PassOptionError(
            f"--pass-pipeline and the pass flag {pass_words[0]} exclude each other. "
            "Write all passes in the pipeline."
        )
    if found.emit == "bytecode" and found.split_input_file:
        raise PassOptionError(
            "--emit=bytecode with --split-input-file: one bytecode file holds one module. "
            "Use --emit=text."
        )
    if found.plan_json is not None and found.split_input_file:
        raise PassOptionError(
            "--plan-json with --split-input-file: the file holds the plan of one module. Leave one "
            "of them out."
        )
    steps = (
        parse_pipeline(found.pass_pipeline)
        if found.pass_pipeline is not None
        else tuple(_flag_step(word) for word in pass_words)
    )
    return Settings(
        input=found.input,
        output=found.output,
        emit=cast(Emit, found.emit),
        mesh=_mesh_text(found.mesh),
        plan_json=found.plan_json,
        steps=steps,
        split=found.split_input_file,
        verify_diagnostics=found.verify_diagnostics,
        print_after_all=found.mlir_print_ir_after_all,
        debug_info=found.mlir_print_debuginfo,
        timing=found.mlir_timing,
    )


def _mesh_text(text: str | None) -> str | None:
    """``--mesh`` as the mesh writes itself.

    Raises:
        PassOptionError: It is not a mesh.
    """
    if text is None:
        return None
    from autoshard.sharding import Mesh

    try:
        return str(Mesh.parse(text))
    except AutoshardError as error:
        raise PassOptionError(f"--mesh={text}: {error.message}") from error


def _separate(words: list[str], driver_flags: frozenset[str]) -> tuple[list[str], list[str]]:
    """Words for the driver, and pass flags in their order.

    Raises:
        PassOptionError: A flag that is neither.
    """
    driver: list[str] = []
    passes: list[str] = []
    for index, word in enumerate(words):
        flag = word.partition("=")[0]
        if word == "--":
            return driver + words[index:], passes
        if not word.startswith("--") or flag in driver_flags:
            driver.append(word)
        elif is_pass(flag[2:]):
            passes.append(word)
        else:
            raise _unknown_flag(flag, driver_flags)
    return driver, passes


def _unknown_flag(flag: str, driver_flags: frozenset[str]) -> PassOptionError:
    passes = [f"--{name}" for name in (*ALL_PASSES, *NATIVE_SUMMARIES)]
    ours = flag.replace("--", "--autoshard-", 1)
    hint = nearest(ours if ours[2:] in ALL_PASSES else flag, [*driver_flags, *passes])
    return PassOptionError(
        f"unknown pass or option {flag}.{hint} {PROGRAM} --help shows the options, "
        "--list-passes all passes."
    )


def _flag_step(word: str) -> Step:
    name, _, options = word[2:].partition("=")
    return parse_pass(name, options)


# What the command tells about itself


def _help() -> str:
    """The text of ``--help``."""
    lines = [
        _parser().format_help(),
        "autoshard's passes:",
        *(_pass_help(name) for name in ALL_PASSES),
        "jaxlib's passes (those most used with autoshard; --list-passes shows all):",
        *(_entry(name, NATIVE_SUMMARIES[name]) for name in _NATIVE_IN_HELP),
        "",
        "examples:",
        f"  {PROGRAM} step.mlir --mesh=dp=2,tp=4 --autoshard-import-strategies \\",
        "      --autoshard-sharding-propagation='trip-count=10' -o planned.mlir",
        f"  {PROGRAM} step.mlir --autoshard-recursive-programming='cluster=v5e:4x4' \\",
        "      --plan-json=plan.json -o planned.mlir",
        f"  {PROGRAM} step.mlir.gz --pass-pipeline="
        "'builtin.module(func.func(sdy-populate-op-sharding-rules),cse)'",
        f"  {PROGRAM} --emit=bytecode -o step.mlirbc < step.mlir",
        "",
        "Errors read file:line:col: error: message; the exit code is then 1.",
    ]
    return "\n".join(lines)


def _pass_list() -> str:
    """The text of ``--list-passes``."""
    lines = ["autoshard's passes:", *(_pass_help(name) for name in ALL_PASSES)]
    lines += ["", f"jaxlib's passes (jaxlib {_jaxlib_version()}):"]
    for name, summary in NATIVE_SUMMARIES.items():
        if not is_native(name):
            continue
        lines.append(_entry(name, summary))
        if options := native_options(name):
            lines.append(_wrapped(options, " " * 6))
    return "\n".join(lines)


def _version() -> str:
    from importlib.metadata import version

    return f"autoshard {version('autoshard')}, jaxlib {_jaxlib_version()}"


def _jaxlib_version() -> str:
    from importlib.metadata import version

    return version("jaxlib")


_ANSWERS: dict[str, Callable[[], str]] = {
    "--help": _help,
    "-h": _help,
    "--list-passes": _pass_list,
    "--version": _version,
}

_NATIVE_IN_HELP = (
    "sdy-propagation-pipeline",
    "sdy-populate-op-sharding-rules",
    "sdy-insert-explicit-reshards",
    "sdy-reshard-to-collectives",
    "sdy-flatten-call-graph",
    "canonicalize",
    "cse",
    "symbol-dce",
    "strip-debuginfo",
)


def _pass_help(name: str) -> str:
    """A pass with its summary and options."""
    found = pass_type(name)
    lines = [_entry(name, summary_of(found))]
    for option in options_of(found):
        head = f"{option.name}={option.type_text}"
        lines.append(_wrapped(f"{head}  {option.help} (default: {option.default_text})", " " * 6))
    return "\n".join(lines)


def _entry(name: str, summary: str) -> str:
    return f"  --{name}\n{_wrapped(summary, ' ' * 6)}"


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(
        text,
        _width(),
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_on_hyphens=False,
        break_long_words=False,
    )


def _width() -> int:
    return min(100, shutil.get_terminal_size((100, 24)).columns)


# Input and output


def _read_chunks(settings: Settings) -> list[Chunk]:
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


def _write(data: bytes, settings: Settings) -> None:
    """Write to the output: a file all at once or not at all.

    Raises:
        ParseError: The file cannot be written, or bytecode would go to a terminal.
    """
    if settings.output is None or settings.output == "-":
        if settings.emit == "bytecode" and sys.stdout.isatty():
            raise PassOptionError("bytecode would go to a terminal. Use -o FILE or a pipe.")
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    _write_file(settings.output, data)


def _write_file(path: str, data: bytes) -> None:
    """Raises OutputError if the file cannot be written."""
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


# One module


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a chunk."""

    ok: bool
    output: bytes | None
    """None when there is no module, after an error."""
    plan_json: bytes | None = None
    """What ``--plan-json`` asks for."""


def _run_chunk(
    chunk: Chunk, settings: Settings, timing: Timing, report: Callable[[str], None]
) -> Result:
    found: list[Diagnostic] = []
    output: bytes | None = None
    plan = _PlanJson()
    with _warnings_to(found):
        try:
            output = _transform(chunk, settings, timing, report, plan)
        except AutoshardError as error:
            found.append(_diagnostic_of(error))
    found = [_in_file(diagnostic, chunk.name) for diagnostic in found]
    if settings.verify_diagnostics:
        wrong = check_diagnostics(chunk.text or "", chunk.name, found)
        _print_diagnostics(wrong, chunk)
        return Result(not wrong, output)
    _print_diagnostics(found, chunk)
    return Result(output is not None, output, plan.text)


class _PlanJson:
    """The summary of the last plan that was seen: exports take it off the module."""

    def __init__(self) -> None:
        self.text: bytes | None = None

    def look(self, module: mlir.Module) -> None:
        """Remember the module's plan, if it has one that is not exported."""
        found = plan_json(module)
        if found is not None:
            self.text = found


def _transform(
    chunk: Chunk,
    settings: Settings,
    timing: Timing,
    report: Callable[[str], None],
    plan: _PlanJson,
) -> bytes:
    """The chunk's module after all passes.

    Raises:
        AutoshardError: It does not parse, or a pass refuses it.
    """
    report(f"{chunk.name}: error: reading the module")
    with timing.measure("parse"):
        module = parse_bytes(chunk.data, new_context(), chunk.name, chunk.text_file)
    if settings.mesh is not None:
        _set_mesh(module, settings.mesh)

    def after(name: str, module: mlir.Module) -> None:
        if settings.plan_json is not None:
            plan.look(module)
        if not settings.print_after_all:
            return
        text = print_module(module, "generic" if settings.emit == "generic" else "text")
        print(f"// -----// IR Dump After {name} //----- //", file=sys.stderr)
        print(text.decode(), file=sys.stderr)

    run_passes(
        module,
        settings.steps,
        started=lambda name: report(f"{chunk.name}: error: {name}"),
        print_after=after,
        timing=timing.add,
    )
    if settings.plan_json is not None and plan.text is None:
        plan.look(module)
        if plan.text is None:
            raise PlanError(
                f"--plan-json={settings.plan_json}: the module has no plan. Plan it: "
                "--autoshard-recursive-programming='cluster=v5e:4x4'."
            )
    with timing.measure("print"):
        return print_module(module, settings.emit, settings.debug_info)


def _set_mesh(module: mlir.Module, mesh: str) -> None:
    """Write the mesh on a module that has none yet.

    Raises:
        ShardingError: The module has another mesh.
    """
    attributes = module.operation.attributes
    if MESH not in attributes:
        attributes[MESH] = mlir.StringAttr.get(mesh, module.context)
        return
    present = mlir.StringAttr(attributes[MESH]).value
    if _mesh_text(present) != mesh:
        raise ShardingError(
            f'--mesh={mesh}, but the module has {MESH} = "{present}". '
            "Leave --mesh out, or remove the attribute.",
            place(module.operation.location),
        )


# Messages


@contextmanager
def _warnings_to(found: list[Diagnostic]) -> Generator[None]:
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


def _diagnostic_of(error: AutoshardError) -> Diagnostic:
    notes = error.notes if isinstance(error, PassError) else ()
    return Diagnostic(
        "error",
        error.message,
        error.location,
        tuple(Diagnostic("note", text, where) for text, where in notes),
    )


def _in_file(diagnostic: Diagnostic, name: str) -> Diagnostic:
    """The diagnostic with the file's name where MLIR writes ``-``, or nothing."""
    where = name if diagnostic.place is None else _DASH_PLACE.sub(lambda _: name, diagnostic.place)
    return Diagnostic(
        diagnostic.severity,
        _DASH_PLACE.sub(lambda _: name, diagnostic.message),
        where,
        tuple(_in_file(note, name) for note in diagnostic.notes),
    )


def _print_diagnostics(diagnostics: Iterable[Diagnostic], chunk: Chunk) -> None:
    for diagnostic in diagnostics:
        print(f"{diagnostic.place}: {diagnostic.severity}: {diagnostic.message}", file=sys.stderr)
        if diagnostic.place is not None and (source := _source_line(diagnostic.place, chunk)):
            print(source, file=sys.stderr)
        _print_diagnostics(diagnostic.notes, chunk)


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
