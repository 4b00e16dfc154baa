"""What autoshard-opt tells about itself."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from autoshard.cli.opt_driver.settings import PROGRAM, command_line_parser, text_width
from autoshard.ir.native import is_native, native_options
from autoshard.ir.native_passes import NATIVE_SUMMARIES
from autoshard.passes.base import options_of, summary_of
from autoshard.passes.registry import ALL_PASSES, pass_type


def _help() -> str:
    """The text of ``--help``."""
    lines = [
        command_line_parser().format_help(),
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


ANSWERS: dict[str, Callable[[], str]] = {
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
        text_width(),
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_on_hyphens=False,
        break_long_words=False,
    )
