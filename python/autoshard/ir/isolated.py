"""Run a native pipeline in a process of its own, for passes that can kill theirs.

``sdy-convert-global-to-local`` of jaxlib 0.10.2 ends the process with a fatal check on some
modules (a canonicalized ``reduce_scatter`` is one). Here that is an ordinary error.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from jaxlib.mlir import ir

from autoshard.errors import PassError
from autoshard.ir.module import new_context, parse_bytes, print_module
from autoshard.ir.native import run_native

MAY_ABORT = frozenset({"sdy-convert-global-to-local"})
"""Native passes that have been seen to kill their process."""

TIME_LIMIT_SECONDS = 600.0


def run_isolated(
    module: ir.Module, pipeline: str, time_limit_seconds: float = TIME_LIMIT_SECONDS
) -> None:
    """As ``run_native``, but the worst that can happen is an error.

    Args:
        module: Gets the result's ops and attributes; references to its old ops end.
        pipeline: ``builtin.module(...)``.
        time_limit_seconds: After this the process is stopped.

    Raises:
        PassError: The pass failed, killed its process or ran out of time.
    """
    here = str(Path(__file__).parents[2])
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__, pipeline],
            input=print_module(module, "bytecode"),
            capture_output=True,
            timeout=time_limit_seconds,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([here, *filter(None, sys.path)])},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PassError(f"{pipeline} did not end within {time_limit_seconds:g} s") from error
    if done.returncode == 1:
        said = json.loads(done.stdout)
        raise PassError(said["message"], said["location"], tuple(map(tuple, said["notes"])))
    if done.returncode != 0:
        raise PassError(f"{pipeline} {_death(done)}")
    _replace(module, parse_bytes(done.stdout, module.context, "-"))


def _death(done: subprocess.CompletedProcess[bytes]) -> str:
    """How the process ended and the last thing it said about it."""
    how = (
        f"killed its process ({signal.Signals(-done.returncode).name})"
        if done.returncode < 0
        else f"ended its process with exit code {done.returncode}"
    )
    lines = done.stderr.decode(errors="replace").splitlines()
    fatal = [line for line in lines if "Check failed" in line or "Assertion" in line]
    said = (fatal or lines or ["nothing was printed"])[0].strip().rstrip(".")
    said = said[max(said.find("Check failed"), 0) :]
    return f"{how}: {said}. This is a defect of jaxlib's pass: leave it out for this module"


def _replace(module: ir.Module, by: ir.Module) -> None:
    """Give ``module`` the ops and attributes of ``by``, so that callers may keep their object."""
    for operation in list(module.body.operations):
        operation.erase()
    for operation in list(by.body.operations):
        module.body.append(operation.detach_from_parent())
    attributes = module.operation.attributes
    for name in list(attributes):
        del attributes[name]
    for name in by.operation.attributes:
        attributes[name] = by.operation.attributes[name]


def _main() -> int:
    """Module bytecode on standard input, pipeline as argument; bytecode or an error as JSON."""
    module = parse_bytes(sys.stdin.buffer.read(), new_context(), "-")
    try:
        run_native(module, sys.argv[1])
    except PassError as error:
        said = {"message": error.message, "location": error.location, "notes": error.notes}
        print(json.dumps(said))
        return 1
    sys.stdout.buffer.write(print_module(module, "bytecode"))
    return 0


if __name__ == "__main__":
    sys.exit(_main())
