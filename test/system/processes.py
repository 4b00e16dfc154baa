"""Programs that run as several processes of one job."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from dataclasses import dataclass

SECONDS = 300


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])


@dataclass(frozen=True)
class Ended:
    """What came of a process."""

    code: int
    out: str
    errors: str


def ended(*program: str, count: int = 2, stops_at_failure: bool = False) -> list[Ended]:
    """What comes of each of several processes; none runs any more then.

    Args:
        program: What Python runs; a port and the number of the process are its last arguments.
        count: How many processes.
        stops_at_failure: Those behind one that fails are killed and left out.
    """
    port = free_port()
    with contextlib.ExitStack() as stack:
        processes: list[subprocess.Popen[str]] = []
        for number in range(count):
            process = subprocess.Popen(
                [sys.executable, *program, str(port), str(number)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0"},
                text=True,
            )
            processes.append(stack.enter_context(process))
            stack.callback(process.kill)
        found: list[Ended] = []
        for process in processes:
            out, errors = process.communicate(timeout=SECONDS)
            found.append(Ended(process.returncode, out, errors))
            if stops_at_failure and process.returncode != 0:
                break
        return found


def outputs(*program: str, count: int = 2) -> list[str]:
    """What each of several processes prints; see ``ended``."""
    found = ended(*program, count=count, stops_at_failure=True)
    assert found[-1].code == 0, found[-1].errors[-3000:]
    return [one.out for one in found]
