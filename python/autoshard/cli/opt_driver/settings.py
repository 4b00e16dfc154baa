"""What the command line of autoshard-opt asks for."""

from __future__ import annotations

import argparse
import shutil
from dataclasses import dataclass
from typing import NoReturn, cast

from autoshard.errors import AutoshardError, PassOptionError
from autoshard.ir.module import Emit
from autoshard.ir.native_passes import NATIVE_SUMMARIES
from autoshard.passes.base import nearest
from autoshard.passes.pipeline import Step, is_pass, parse_pass, parse_pipeline
from autoshard.passes.registry import ALL_PASSES
from autoshard.sharding import Mesh

PROGRAM = "autoshard-opt"


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


class _Parser(argparse.ArgumentParser):
    """argparse, but errors are ours: one line, exit code 1."""

    def error(self, message: str) -> NoReturn:
        raise PassOptionError(f"{message}. {PROGRAM} --help shows how it is used.")


def command_line_parser() -> argparse.ArgumentParser:
    """Flags that are not passes."""
    parser = _Parser(
        prog=PROGRAM,
        description="Run compiler passes on a StableHLO module: autoshard's own and jaxlib's "
        "(MLIR and Shardy), in the order in which they are given.",
        usage=f"{PROGRAM} [options] [--PASS[='option=value ...'] ...] [FILE]",
        add_help=False,
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.HelpFormatter(
            prog, max_help_position=30, width=text_width()
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


def text_width() -> int:
    """Columns of help texts."""
    return min(100, shutil.get_terminal_size((100, 24)).columns)


def _driver_flags(parser: argparse.ArgumentParser) -> frozenset[str]:
    actions = parser._actions  # pyright: ignore[reportPrivateUsage]
    return frozenset(flag for action in actions for flag in action.option_strings)


def read_settings(words: list[str]) -> Settings:
    """The settings of a command line.

    Raises:
        PassOptionError: An unknown flag, pass or option, or a value that is not taken.
        ParseError: The pipeline is not one.
    """
    parser = command_line_parser()
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
