"""The pass ``autoshard-plan`` gives the plan that ``autoshard.plan`` gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from plan_cases import whole_products

import autoshard
from autoshard.cli import opt
from autoshard.ir import new_context
from autoshard.ir.module import parse_file
from autoshard.planned.module import read_plan

CLUSTER = "v5e:2x4"


def step(parameters: Any, momenta: Any, x: Any) -> Any:
    def loss(parameters: Any) -> Any:
        h = x
        for w in parameters:
            h = jnp.tanh(h @ w)
        return jnp.sum(h**2)

    gradients = jax.grad(loss)(parameters)
    momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, gradients)
    return jax.tree.map(lambda p, m: p - 0.1 * m, parameters, momenta), momenta


def arguments(rows: int) -> tuple[Any, Any, Any]:
    weights = [jax.ShapeDtypeStruct((512, 512), jnp.float32)] * 4
    return weights, weights, jax.ShapeDtypeStruct((rows, 512), jnp.float32)


@pytest.mark.parametrize(
    ("rows", "limit", "options"),
    [
        (4096, "", {}),
        (4096, "", {"optimizer_parallel": 2}),
        (65536, "90MiB", {"recompute": "auto"}),
        (65536, "80MiB", {"host_offload": "auto", "recompute": "auto", "optimizer_parallel": 1}),
    ],
)
def test_a_file_is_planned_as_the_function(
    rows: int, limit: str, options: dict[str, Any], tmp_path: Path
) -> None:
    wanted = autoshard.plan(
        step,
        *arguments(rows),
        cluster=whole_products(CLUSTER),
        donate_argnums=(0, 1),
        memory_limit=limit or None,
        **options,
    )
    source, planned = tmp_path / "step.mlir", tmp_path / "planned.mlir"
    lowered = jax.jit(step, donate_argnums=(0, 1)).lower(*arguments(rows))
    # With locations: what is computed again is chosen by lines of the user's code.
    source.write_text(lowered.as_text(debug_info=True))
    text = " ".join(f"{key.replace('_', '-')}={value}" for key, value in options.items())
    where = f"cluster={CLUSTER} compiler={whole_products(CLUSTER).compiler}"
    words = f"{where} {text} {f'memory-limit={limit}' if limit else ''}"
    costs = tmp_path / "costs.json"
    command = [str(source), f"--autoshard-plan={words}", "-o", str(planned)]
    assert opt.main([*command, f"--plan-json={costs}"]) == 0
    found = json.loads(costs.read_text())
    assert found["step_seconds"] == wanted.step_seconds
    assert found["peak_bytes_per_device"] == wanted.peak_bytes
    assert (found["host_bytes_per_device"] > 0) == (limit == "80MiB")
    assert bool(found["recomputed"]) == bool(limit)
    (main,) = read_plan(parse_file(planned, new_context())).functions
    shardings = [None if it is None else str(it.sharding) for it in main.arguments]
    assert shardings == [str(it.sharding) for it in wanted.arguments]


def test_what_the_pass_does_not_know_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "step.mlir"
    source.write_text("module {}")
    for options, said in (
        ("", "no cluster is given"),
        ("cluster=v5e:2x4 recompute=some", "option recompute=some"),
        ("cluster=v5e:2x4 optimizer-parallel=4", "level=4 is out of range"),
    ):
        assert opt.main([str(source), f"--autoshard-plan={options}"]) == 1
        assert said in capsys.readouterr().err
