"""Processes of their own for what may end, hang or take more memory than there is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_PACKAGES = Path(__file__).parents[2]
_LOOK_SECONDS = 0.2
"""Between two looks at whether to stop."""


def compile_environment() -> dict[str, str]:
    """Environment of a process that compiles: the same packages, and no device of this machine."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(_PACKAGES), *filter(None, sys.path)]),
        # The only client: that of GPUs and TPUs is made from a description.
        "JAX_PLATFORMS": "cpu",
        # Quiet, and beside other processes that use libtpu.
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TF_CPP_MIN_LOG_LEVEL": "1",
    }


def exit_code(
    python: Sequence[str], folder: Path, timeout: float, stop: threading.Event | None = None
) -> int | None:
    """Run this Python, with what it prints in ``folder/log``.

    Args:
        python: Its arguments, such as ``-m`` and a module.
        folder: The last argument, where it finds its request and leaves its result.
        timeout: Seconds, after which it is stopped with all that it started.
        stop: Stops it as well, from another thread.

    Returns:
        The exit code; None where it was stopped.
    """
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *python, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=compile_environment(),
            # A group of its own, so that what a compiler starts (ptxas) is stopped with it.
            start_new_session=True,
        )
        try:
            return _wait(process, timeout, stop)
        finally:
            with suppress(ProcessLookupError):  # all of them have ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(
    process: subprocess.Popen[bytes], timeout: float, stop: threading.Event | None
) -> int | None:
    """The exit code; None where it runs for longer, or is to stop."""
    deadline = time.monotonic() + timeout
    while stop is None or not stop.is_set():
        left = max(0.0, deadline - time.monotonic())
        try:
            return process.wait(left if stop is None else min(left, _LOOK_SECONDS))
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline:
                return None
    return None
