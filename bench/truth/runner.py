"""Run jobs: compile ops sharded, compare with the same ops on one device.

    python bench/truth/runner.py JOBS RESULTS [--processes 2]

JOBS has one job a line as JSON (``cases.Job``); RESULTS gets one line a job, and jobs that it has
are skipped. Jobs on one mesh are compiled together, which takes a tenth of the time. Each such
batch runs in a process of its own, as XLA ends the process on some programs and never returns from
others; of a batch with such a program the halves are tried again. This process never starts a
backend of JAX, so that it may fork.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_ENABLE_X64"] = "1"  # for arguments of 64 bits
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import numpy as np

from autoshard.ir import new_context, parse_bytes
from autoshard.ir.compile import CompilationFailed, compile_module
from bench.truth.data import data_sets

OPTIONS: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}
"""Options of XLA: what is partitioned is the question, not how well it is compiled."""

MOST_TOGETHER = 24
BATCH_SECONDS, JOB_SECONDS = 60, 10
"""A batch hangs after so many seconds, and as many more for each job. The slowest job seen took
3 s on two shared cores (2026-11-23)."""

REPORT_SECONDS = 20
_REFUSED = 3
"""Exit code of a process whose program XLA refuses with an error."""

Job = dict[str, Any]
Answer = dict[str, Any]


@dataclass
class Running:
    """A batch and the process that runs it."""

    jobs: list[Job]
    process: int
    output: int
    log: Any
    deadline: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    os.nice(5)
    known = {answer["id"] for answer in answers(options.results)}
    with open(options.jobs) as file:
        jobs = [job for job in map(json.loads, file) if job["id"] not in known]
    with open(options.results, "a") as results:
        run_all(jobs, results, options.processes)


def answers(path: Path) -> list[Answer]:
    """What a file of results has; a line that was cut off when a run was stopped is taken away."""
    if not path.exists():
        return []
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole)
    return [json.loads(line) for line in whole.splitlines()]


def batches(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs on one mesh with one partitioner."""
    alike: dict[tuple[str, str], list[Job]] = defaultdict(list)
    for job in jobs:
        alike[job["mesh"], job["partitioner"]].append(job)
    return [
        some[start : start + MOST_TOGETHER]
        for some in alike.values()
        for start in range(0, len(some), MOST_TOGETHER)
    ]


def run_all(jobs: Sequence[Job], results: Any, processes: int) -> None:
    """Every job's answer into ``results``."""
    waiting = batches(jobs)[::-1]
    running: list[Running] = []
    done, begin, reported = 0, time.monotonic(), time.monotonic()
    while waiting or running:
        while waiting and len(running) < processes:
            running.append(start(waiting.pop()))
        select.select([each.output for each in running], [], [], 1.0)
        for each in list(running):
            ended, code = os.waitpid(each.process, os.WNOHANG)
            is_late = time.monotonic() > each.deadline
            if not ended and not is_late:
                continue
            if not ended:
                os.kill(each.process, signal.SIGKILL)
                os.waitpid(each.process, 0)
            running.remove(each)
            found = finished(each, code if ended else None)
            if found is None:
                half = len(each.jobs) // 2
                waiting += [each.jobs[half:], each.jobs[:half]]
                continue
            done += len(found)
            for answer in found:
                print(json.dumps(answer), file=results, flush=True)
        if time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            rate = done / (reported - begin)
            print(f"{done} of {len(jobs)} programs, {rate:.1f} a second", flush=True)


def start(jobs: list[Job]) -> Running:
    """A process for a batch; its answers come through a pipe."""
    reading, writing = os.pipe()
    log = tempfile.TemporaryFile()  # noqa: SIM115
    process = os.fork()
    if process == 0:
        os.close(reading)
        os.dup2(log.fileno(), 2)
        try:
            os.write(writing, json.dumps(run(jobs)).encode())
            os._exit(0)
        except CompilationFailed as error:
            os.write(2, f"\n{type(error).__name__}: {error}\n".encode()[:4000])
            os._exit(_REFUSED)
        except BaseException:
            os.write(2, traceback.format_exc().encode())
            os._exit(1)
    os.close(writing)
    deadline = time.monotonic() + BATCH_SECONDS + JOB_SECONDS * len(jobs)
    return Running(jobs, process, reading, log, deadline)


def finished(batch: Running, code: int | None) -> list[Answer] | None:
    """Answers of a batch; None: it failed and is more than one job."""
    text = b""
    while code == 0 and (part := os.read(batch.output, 1 << 16)):
        text += part
    os.close(batch.output)
    with batch.log as log:
        log.seek(0)
        said = log.read().decode(errors="replace")
    if code == 0:
        return json.loads(text)
    if code is not None and os.WIFEXITED(code) and os.WEXITSTATUS(code) != _REFUSED:
        raise RuntimeError(said)
    if len(batch.jobs) > 1:
        return None
    verdict = "hangs" if code is None else "aborts" if os.WIFSIGNALED(code) else "refused"
    return [{"id": batch.jobs[0]["id"], "verdict": verdict, "why": _reason(said)}]


def _reason(said: str) -> str:
    """The line that says what failed."""
    lines = [line for line in said.splitlines() if line.strip()]
    failed = [line for line in lines if line.startswith("F0") or "Check failed" in line]
    if failed:
        return failed[-1].partition("] ")[2][:300]
    errors = [line for line in lines if re.match(r"\w*Error: ", line)]
    return (errors or lines or [""])[-1][:300]


# In the process of a batch ----------------------------------------------------------------------


def run(jobs: list[Job]) -> list[Answer]:
    """Verdicts of jobs that are compiled together."""
    first = jobs[0]
    wholes = list({job["whole"]: job for job in jobs}.values())
    data = {job["whole"]: data_sets(job["operands"]) for job in wholes}
    count = max(map(len, data.values()))
    whole = _compiled(merged([job["whole"] for job in wholes]), 1, True)
    cut = _compiled(
        merged([job["text"] for job in jobs]), first["devices"], first["partitioner"] == "shardy"
    )
    bad: dict[str, dict[str, str]] = defaultdict(dict)
    for number in range(count):
        wanted = _results(whole, wholes, data, number)
        found = _results(cut, jobs, data, number)
        references = dict(zip([job["whole"] for job in wholes], wanted, strict=True))
        for job, got in zip(jobs, found, strict=True):
            sets = data[job["whole"]]
            message = difference(got, references[job["whole"]], job["tolerance"])
            if message:
                bad[job["id"]].setdefault(sets[number % len(sets)][0], message)
    return [
        {"id": job["id"], "verdict": "wrong", "data": bad[job["id"]]}
        if job["id"] in bad
        else {"id": job["id"], "verdict": "right"}
        for job in jobs
    ]


def _compiled(text: str, devices: int, use_shardy: bool) -> Any:
    module = parse_bytes(text.encode(), new_context(), "job")
    return compile_module(module, jax.devices()[:devices], use_shardy=use_shardy, options=OPTIONS)


def _results(
    program: Any, jobs: list[Job], data: dict[str, Any], number: int
) -> list[list[np.ndarray]]:
    """What the ops give on one data set each, by job."""
    sets = [data[job["whole"]] for job in jobs]
    arguments = [array for each in sets for array in each[number % len(each)][1]]
    is_whole = len(program.devices) == 1
    found = iter(_run_whole(program, arguments) if is_whole else program.run(*arguments))
    return [[next(found) for _ in range(job["results"])] for job in jobs]


def _run_whole(program: Any, arguments: list[np.ndarray]) -> list[np.ndarray]:
    """On one device, where an executable says nothing of shardings."""
    placed = [jax.device_put(array, program.devices[0]) for array in arguments]
    results = program.executable.execute_sharded(placed)
    return [np.asarray(part) for (part,) in results.disassemble_into_single_device_arrays()]


def difference(found: list[np.ndarray], wanted: list[np.ndarray], tolerance: float) -> str:
    """What is unequal, as text; empty: nothing."""
    for number, (got, want) in enumerate(zip(found, wanted, strict=True)):
        if got.dtype.name == "bfloat16":
            got, want = got.astype(np.float32), want.astype(np.float32)
        if tolerance:
            unequal = ~np.isclose(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)
        else:
            unequal = (got != want) & ~((got != got) & (want != want))
        if unequal.any():
            return f"result {number}: {int(unequal.sum())} of {unequal.size} elements"
    return ""


# Several modules as one -------------------------------------------------------------------------

_HEAD = re.compile(r"^  func\.func public @main\((.*)\) -> (.*) \{$", re.M)
_RETURN = re.compile(r"^    return (.*) : (.*)$", re.M)


def merged(texts: Sequence[str]) -> str:
    """One module that does what all of ``texts`` do: modules of one function, on one mesh."""
    arguments, results, bodies, values, types = [], [], [], [], []
    for number, text in enumerate(texts):
        text = re.sub(r"%(?=\w)", f"%j{number}_", text)
        head, end = _HEAD.search(text), _RETURN.search(text)
        assert head is not None, text
        assert end is not None, text
        arguments.append(head[1])
        results.append(head[2][1:-1] if head[2].startswith("(") else head[2])
        bodies.append(text[head.end() : end.start()])
        values.append(end[1])
        types.append(end[2])
    first = _HEAD.search(texts[0])
    assert first is not None
    return (
        f"{texts[0][: first.start()]}  func.func public @main({', '.join(filter(None, arguments))})"
        f" -> ({', '.join(results)}) {{{''.join(bodies)}"
        f"    return {', '.join(values)} : {', '.join(types)}\n  }}\n}}\n"
    )


if __name__ == "__main__":
    main()
