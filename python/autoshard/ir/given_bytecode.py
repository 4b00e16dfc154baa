"""Bytecode that somebody gives is read in a process of its own first.

jaxlib's reader trusts it: of damaged bytecode it may overwrite memory, end the process, or never
come back. What it does to that process is an ordinary error here. Text is checked while it is read.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from autoshard.errors import ParseError

PROGRAM = ("-m", "autoshard.ir.given_bytecode")
"""What reads it."""

TIME_LIMIT_SECONDS = 20.0
REFUSED = 3
"""Exit code where it is read and said to be wrong."""

_BYTES_A_SECOND = 1e6
"""What is read in a second at least; 5 MB of a step of 256,000 ops take about one."""


def check_bytecode(data: bytes, name: str) -> None:
    """Read bytecode elsewhere, to see what that does.

    Args:
        data: The bytecode.
        name: The file name that errors show.

    Raises:
        ParseError: It is damaged, or cannot be read in a process of its own.
    """
    here = str(Path(__file__).parents[2])
    limit = TIME_LIMIT_SECONDS + len(data) / _BYTES_A_SECOND
    try:
        done = subprocess.run(
            [sys.executable, *PROGRAM, name],
            input=data,
            capture_output=True,
            timeout=limit,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([here, *filter(None, sys.path)])},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _unread(f"did not end within {limit:.0f} s", name) from error
    if done.returncode == REFUSED:
        raise ParseError(*json.loads(done.stdout))
    if done.returncode < 0:
        raise _unread(f"ended its process ({signal.Signals(-done.returncode).name})", name)
    if done.returncode > 0:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise _unread(f"ended its process with exit code {done.returncode}: {said}", name)


def _unread(how: str, name: str) -> ParseError:
    return ParseError(
        f"the bytecode cannot be read: the reader of jaxlib {how}. It is damaged, as far as that"
        " tells. Write the file again, or give MLIR text.",
        name,
    )


def _main() -> int:
    """Bytecode on standard input, its name as argument; an error as JSON."""
    from autoshard.ir.module import new_context, parse_bytes

    try:
        parse_bytes(sys.stdin.buffer.read(), new_context(), sys.argv[1])
    except ParseError as error:
        print(json.dumps([error.message, error.location]))
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(_main())
