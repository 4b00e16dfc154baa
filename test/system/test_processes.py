"""Two processes with two devices each: they find one plan, by themselves, and run it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.custom_partitioning import custom_partitioning
from processes import ended, outputs
from two_processes import FUNCTIONS, MODES, WEIGHTS, X, start, step

import autoshard
from autoshard.frontend.processes import digest

SCRIPT = Path(__file__).with_name("two_processes.py")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """What each process printed."""
    folder = str(tmp_path_factory.mktemp("checkpoint"))
    return [
        [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        for out in outputs(str(SCRIPT), folder)
    ]


def test_both_find_the_plan_that_one_process_finds(said: Any) -> None:
    assert said[0][: len(MODES)] == said[1][: len(MODES)]
    for mode, found in zip(MODES, said[0], strict=False):
        options = MODES[mode]
        if mode == "data_parallel":
            options = {**options, "mesh": "data=4"}
        fn = FUNCTIONS.get(mode, step)
        plan = autoshard.plan(fn, start(mode), X, donate_argnums=0, **options)
        values = (*plan.arguments, *plan.results)
        assert found["plan"] == [str(plan.mesh), *(str(value.sharding) for value in values)]


def test_both_compute_what_one_device_does(said: Any) -> None:
    for found in said[0][: len(MODES)]:
        mode = found["mode"]
        weights, losses = start(mode), []
        for _ in range(2):
            weights, loss = jax.jit(FUNCTIONS.get(mode, step))(weights, X)
            losses.append(float(loss))
        np.testing.assert_allclose(found["losses"], losses, rtol=1e-5)
        on_host = ["pinned_host"] if mode == "host memory" else []
        assert found["kinds"] == ["device", *on_host]


def test_a_checkpoint_of_both_is_read_by_both_under_another_plan(said: Any) -> None:
    weights, expected = WEIGHTS, 0.0
    for _ in range(2):
        weights, expected = jax.jit(step)(weights, X)
    restored = [next(one["restored"] for one in lines if "restored" in one) for lines in said]
    np.testing.assert_allclose(restored, [float(expected)] * 2, rtol=1e-5)


def test_plans_that_differ_are_refused_by_both(said: Any) -> None:
    for lines in said:
        assert "process 1 has another plan than process 0" in lines[-2]["refused"]


def test_all_end_where_planning_fails_in_one(said: Any) -> None:
    assert "process 1 has no plan" in said[0][-1]["refused"]
    assert "no plan fits" in said[1][-1]["refused"]


def test_a_plan_is_the_same_to_all_whatever_addresses_their_callbacks_have() -> None:
    x = jax.ShapeDtypeStruct((8, 16), jnp.float32)

    def one(**options: Any) -> autoshard.Plan:
        def rows(mesh: Any, operands: Any, _: Any) -> Any:
            return operands[0].sharding

        doubled = custom_partitioning(lambda x: 2 * x)
        doubled.def_partition(
            partition=lambda mesh, operands, _: (
                mesh,
                lambda x: 2 * x,
                *[operands[0].sharding] * 2,
            ),
            infer_sharding_from_operands=rows,
            sharding_rule="rows columns -> rows columns",
        )
        return autoshard.plan(lambda x: doubled(x), x, cluster="cpu:4", **options)

    plans = [one(), one(), one(compiler_options={"xla_dump_to": "x"})]
    first, second, other = (digest(plan, "autoshard-export-shardy") for plan in plans)
    assert plans[0].to_mlir(False) != plans[1].to_mlir(False)  # by their addresses
    assert first == second != other


def test_one_that_dies_ends_the_other_with_a_message() -> None:
    began = time.monotonic()
    waiting, dead = ended(str(SCRIPT.with_name("dying_process.py")))
    assert dead.code == 3
    assert waiting.code != 0
    assert "loss" not in waiting.out
    assert re.search(r"heartbeat|unhealthy|Connection closed by peer", waiting.errors)
    assert time.monotonic() - began < 100


def test_two_that_wait_are_ended_when_one_fails() -> None:
    code = "import sys, time; sys.argv[2] == '1' or sys.exit('it failed'); time.sleep(60)"
    began = time.monotonic()
    with pytest.raises(AssertionError, match="it failed"):
        outputs("-c", code)
    assert time.monotonic() - began < 30
