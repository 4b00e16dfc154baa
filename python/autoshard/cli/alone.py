"""A subcommand of ``autoshard`` by itself: ``python -m autoshard.cli.diff A B``."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from autoshard.errors import AutoshardError


def run_alone(name: str, arguments: Sequence[str] | None = None) -> int:
    """Run one; errors go to standard error without a traceback.

    Args:
        name: Of its module in this package, which has ``DESCRIPTION``, ``EPILOG``,
            ``add_arguments`` and ``run``.
        arguments: Without the program's name; the process's own when None.

    Returns:
        The exit code: that of the subcommand, 1 after an error.
    """
    module: Any = importlib.import_module(f"autoshard.cli.{name}")
    parser = argparse.ArgumentParser(
        prog=f"autoshard {name}",
        description=module.DESCRIPTION,
        epilog=module.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    options = parser.parse_args(arguments)
    # Before JAX is loaded: this process needs no device, and must not take one from its users.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    try:
        return module.run(options)
    except AutoshardError as error:
        where = f"{error.location}: " if error.location else f"{parser.prog}: "
        print(f"{where}error: {error.message}", file=sys.stderr)
        return 1
