"""autoshard-opt: run autoshard's and jaxlib's passes on StableHLO files.

The work is done in a child process, forked before jaxlib is loaded: C++ passes end their process
when a check of theirs fails, and the user shall read which pass it was, not a core dump.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Without the program's name; the process's own when None.

    Returns:
        The exit code: 0, or 1 when something was wrong.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not hasattr(os, "fork") or "jaxlib" in sys.modules:
        return _run(words, lambda step: None)
    return run_in_child(words)


def run_in_child(words: list[str]) -> int:
    """Run the command in a fork of this process, which has no threads.

    Args:
        words: Without the program's name.

    Returns:
        The exit code: 0, or 1 when something was wrong, the end of the child's process too.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os._exit(_run_child(words, writer))
    os.close(writer)
    code = _wait(child)
    with os.fdopen(reader, "rb") as steps:
        last = steps.read().decode().splitlines()[-1:]
    if code >= 0:
        return code
    doing = last[0] if last else "autoshard-opt: error: starting"
    name = signal.Signals(-code).name
    print(
        f"{doing} ended the process ({name}). A check in jaxlib's C++ code failed on this module; "
        "if a message stands above, it says which. Leave out the pass, or report the module.",
        file=sys.stderr,
    )
    return 1


def _run(words: list[str], report: Callable[[str], None]) -> int:
    from autoshard.cli.opt_driver.command import run_command

    return run_command(words, report)


def _run_child(words: list[str], writer: int) -> int:
    """The exit code of the work; what it does is written to the pipe, a line a step."""

    def report(step: str) -> None:
        os.write(writer, f"{step}\n".encode())

    code = 1
    try:
        code = _run(words, report)
        sys.stdout.flush()
    finally:
        sys.stderr.flush()
    return code


def _wait(child: int) -> int:
    """The child's exit code, negative for a signal; what ends us ends the child too."""

    def forward(number: int, frame: FrameType | None) -> None:
        os.kill(child, number)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, forward)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main())
