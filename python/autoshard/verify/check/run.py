"""Run a planned program on one virtual device and, split as planned, on many."""

from __future__ import annotations

import json
import re
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoshard.ir import new_context, parse_bytes, print_module
from autoshard.passes.pipeline import run_passes
from autoshard.planned.module import read_plan
from autoshard.progress import task
from autoshard.rewrites.lockstep.step import lockstep_of
from autoshard.verify.ahead_of_time import last_words
from autoshard.verify.check.compare import Difference
from autoshard.verify.check.exact import exact_values
from autoshard.verify.check.part import entry_of
from autoshard.verify.check.plain import with_whole_stages, without_plan
from autoshard.verify.check.widen import rounds, widen
from autoshard.verify.process import exit_code

_PROCESS = ("-m", "autoshard.verify.check.run_process")

PATIENCE_SECONDS, PATIENCE_TIMES = 60.0, 20.0
"""What is split is given so many seconds more than so many times those that one device took: the
virtual devices run in turn on the cores there are."""

_QUICK = {
    # What takes time is compiling, for runs of milliseconds. Fusions are most of it.
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": "True",
    "xla_disable_hlo_passes": "fusion",
}
"""Options of XLA. None of them changes how a program is partitioned, but XLA:CPU of jaxlib 0.10.2
ends at some matmuls that no fusion holds: what fails is run again without them."""

_NO_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|MemoryError|bad_alloc|[Oo]ut of memory")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no result."""

    is_of_plan: bool
    """The program failed when it was split, and only then; False: nothing is known of the plan."""
    text: str
    """What was done and what came of it; what to do, where nothing is known."""
    may_be_otherwise: bool = False
    """XLA failed, and perhaps does not with other options."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Differences of all results of ``main``, the worse of all draws."""

    results: tuple[Difference, ...]
    is_exact: tuple[bool, ...]
    """Compared bit for bit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one check."""

    deadline: float
    """``time.monotonic()`` at its end."""
    host_memory_bytes: int | None
    """Bytes of one process."""

    @property
    def seconds_left(self) -> float:
        """Until the deadline."""
        return self.deadline - time.monotonic()


def run_both(planned: bytes, use_shardy: bool, limits: Limits) -> Outcome | Failure:
    """Run a small planned module in both forms, in a process of its own.

    Args:
        planned: Bytecode of a planned module.
        use_shardy: Partition with Shardy, else with GSPMD.
        limits: Of time and memory.
    """
    with new_context() as context:
        module = parse_bytes(planned, context, "module")
        plan = read_plan(module)
        exact = exact_values(plan)
        lockstep = lockstep_of(module)
        stages = 1 if lockstep is None else lockstep.stages
        flags = [value in exact for value in entry_of(plan).body.ops[-1].op.operands]
    plain, sharded = forms(planned, use_shardy)
    with tempfile.TemporaryDirectory(prefix="autoshard-check-") as name:
        folder = Path(name)
        (folder / "plain.mlirbc").write_bytes(plain)
        (folder / "sharded.mlirbc").write_bytes(sharded)
        request = {
            "stages": stages,
            "num_devices": stages * plan.mesh.size,
            "use_shardy": use_shardy,
            "exact": flags,
            "rounds": rounds(module),
            "host_memory_bytes": limits.host_memory_bytes,
            "patience": [PATIENCE_SECONDS, PATIENCE_TIMES],
        }
        found = _run_in(folder, request | {"options": _QUICK}, limits, flags)
        if isinstance(found, Failure) and found.may_be_otherwise:
            found = _run_in(folder, request | {"options": {}}, limits, flags)
        return found


def forms(planned: bytes, use_shardy: bool) -> tuple[bytes, bytes]:
    """The module for one device, and the exported one, both in double precision.

    One in lockstep is for one device a stage.
    """
    plain = parse_bytes(planned, new_context(), "module")
    lockstep = lockstep_of(plain)
    if lockstep is None:
        without_plan(plain)
    else:
        with_whole_stages(plain, lockstep.stages)
    widen(plain)
    sharded = parse_bytes(planned, new_context(), "module")
    form = "lockstep" if lockstep else "shardy" if use_shardy else "gspmd"
    run_passes(sharded, [f"autoshard-export-{form}"])
    widen(sharded)
    return print_module(plain, "bytecode"), print_module(sharded, "bytecode")


def _run_in(
    folder: Path, request: dict[str, Any], limits: Limits, flags: Sequence[bool]
) -> Outcome | Failure:
    (folder / "request.json").write_text(json.dumps(request))
    for name in ("stage", "result.json"):
        (folder / name).unlink(missing_ok=True)
    with task("running the program, made small, on one device and on many"):
        code = exit_code(_PROCESS, folder, limits.seconds_left)
    return _read(folder, code, flags)


def _read(folder: Path, code: int | None, flags: Sequence[bool]) -> Outcome | Failure:
    stage = folder / "stage"
    doing = stage.read_text() if stage.exists() else "starting"
    result = folder / "result.json"
    if code is None:
        return Failure(
            False,
            f"{doing} was not done in time. Give it more (timeout=, --timeout), or check a smaller"
            " program: one layer, or layers that are scanned.",
        )
    if code == -signal.SIGALRM:
        return Failure(True, f"{doing} does not end.")
    if not result.exists():
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        said = last_words((folder / "log").read_text(errors="replace"))
        return _failed(doing, f"{doing} ended the process ({how}). {said}".strip(), code)
    found: dict[str, Any] = json.loads(result.read_text())
    if found["refusal"] is not None:
        first = next(iter(found["refusal"].strip().splitlines()), "")[:300]
        return _failed(doing, f"{doing} failed: {first}")
    draws = [[Difference(**each) for each in draw] for draw in found["draws"]]
    worst = tuple(max(each, key=_badness) for each in zip(*draws, strict=True))
    return Outcome(worst, tuple(flags))


def _failed(doing: str, text: str, code: int = 0) -> Failure:
    if code == -signal.SIGKILL or _NO_MEMORY.search(text):
        return Failure(False, f"{text} Check it where there is more memory, or a smaller program.")
    if "split" in doing and code <= 0:  # else an error of Python's, not of XLA's
        return Failure(True, text, may_be_otherwise=True)
    whole = f"{text} Check the part of the program that a CPU can run."
    return Failure(False, whole, may_be_otherwise=True)


def _badness(difference: Difference) -> tuple[bool, int, float]:
    return difference.different > 0, difference.finite, difference.error
