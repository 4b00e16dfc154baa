"""The command ``autoshard``: questions about plans, a subcommand each.

A subcommand is a module of this package with ``DESCRIPTION``, perhaps ``EPILOG``,
``add_arguments(parser)``, which says what it takes, and ``run(options)``, which does it and gives
the exit code; with ``USES_DEVICES`` if it looks at devices. It is imported when it is asked for.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from autoshard.errors import AutoshardError

PROGRAM = "autoshard"

SUBCOMMANDS = {
    "plan": "plan a function of a script, also for what is left when slices or nodes fail",
    "explain": "what a step is spent on and where: tables, a page, remarks for editors and CI",
    "why": "why a collective is there or a value lies so: down to a pin, a limit or a price",
    "diff": "what became of a plan, for people, pull requests and CI",
    "frontier": "plans of one mesh that no other beats in both time and memory",
    "doctor": "what is installed, which compilers work, what is missing",
    "sweep": "a step on other clusters and at other sizes: what is least for a step time",
}
"""Modules of this package, by the name of the subcommand, and what each answers."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; errors go to standard error without a traceback.

    Args:
        arguments: Without the program's name; the process's own when None.

    Returns:
        The exit code: that of the subcommand, 1 after an error, 130 after Ctrl-C.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    asked = words[0] if words else None
    # Before a subcommand loads jaxlib, which reads it then.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Ask about plans of autoshard.")
    parsers = parser.add_subparsers(metavar="COMMAND", required=True)
    commands: dict[str, Any] = {}
    for name, answers in SUBCOMMANDS.items():
        described = parsers.add_parser(name, help=answers)
        if name == asked:
            module = commands[name] = importlib.import_module(f"autoshard.cli.{name}")
            described.description = module.DESCRIPTION
            described.epilog = getattr(module, "EPILOG", None)
            described.formatter_class = argparse.RawDescriptionHelpFormatter
            module.add_arguments(described)
    options = parser.parse_args(words)
    assert asked is not None, "argparse asks for a subcommand"
    if not getattr(commands[asked], "USES_DEVICES", False):
        # Before JAX is loaded: this process needs no device, and must not take one from its users.
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    try:
        return commands[asked].run(options)
    except AutoshardError as error:
        where = f"{error.location}: " if error.location else f"{PROGRAM} {asked}: "
        print(f"{where}error: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{PROGRAM} {asked}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
