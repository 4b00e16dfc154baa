"""Two processes with two devices each: they find one plan, by themselves, and run it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from two_processes import MODES, WEIGHTS, X, step

import autoshard

SCRIPT = Path(__file__).with_name("two_processes.py")
SECONDS = 120


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def said() -> list[list[dict[str, Any]]]:
    """What each process printed."""
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, SCRIPT, str(port), str(number)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0"},
            text=True,
        )
        for number in range(2)
    ]
    found: list[list[dict[str, Any]]] = []
    for process in processes:
        try:
            out, errors = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
        assert process.returncode == 0, errors[-3000:]
        lines = [line for line in out.splitlines() if line.startswith("{")]
        found.append([json.loads(line) for line in lines])
    return found


def test_both_find_the_plan_that_one_process_finds(said: Any) -> None:
    assert said[0] == said[1]
    for mode, found in zip(MODES, said[0], strict=False):
        options = MODES[mode]
        if mode == "data_parallel":
            options = {**options, "mesh": "data=4"}
        plan = autoshard.plan(step, WEIGHTS, X, donate_argnums=0, **options)
        values = (*plan.arguments, *plan.results)
        assert found["plan"] == [str(plan.mesh), *(str(value.sharding) for value in values)]


def test_both_compute_what_one_device_does(said: Any) -> None:
    weights, losses = WEIGHTS, []
    for _ in range(2):
        weights, loss = jax.jit(step)(weights, X)
        losses.append(float(loss))
    for found in said[0][: len(MODES)]:
        np.testing.assert_allclose(found["losses"], losses, rtol=1e-5)


def test_plans_that_differ_are_refused_by_both(said: Any) -> None:
    for lines in said:
        assert "process 1 has another plan than process 0" in lines[-1]["refused"]
