"""The command autoshard-verify, given a pipeline: it compiles each task for a stage."""

import json

import jax
import numpy as np
import pytest

import autoshard
from autoshard.cli.verify import main
from autoshard.ir import new_context, parse_bytes
from autoshard.passes.pipeline import run_passes


def layers(weights, x):
    def loss(weights):
        hidden = x
        for own in weights:
            hidden = jax.numpy.maximum(hidden @ own, 0)
        return hidden.sum()

    value, gradients = jax.value_and_grad(loss)(weights)
    return [w - g for w, g in zip(weights, gradients, strict=True)], value


@pytest.fixture(scope="module")
def plan():
    weights = [np.ones((8, 8), "f")] * 2
    pipeline = autoshard.Pipeline(2, 2, "1f1b")
    return autoshard.plan(
        layers, weights, np.ones((16, 8), "f"), cluster="cpu:4", mesh="d=2", pipeline=pipeline
    )


def test_each_task_of_a_module_with_stages_is_compiled(plan, tmp_path, capsys):
    (tmp_path / "stages.mlir").write_text(plan.to_mlir())
    said = tmp_path / "found.json"
    code = main([str(tmp_path / "stages.mlir"), "--cluster", "cpu:4", "--json", str(said)])
    found = json.loads(said.read_text())
    assert code == 0
    assert found["ok"]
    assert found["schedule"] == "1f1b"
    assert found["tasks"].keys() == plan.pipeline.step.modules.keys()
    assert {one["program"]["target"] for one in found["tasks"].values()} == {"cpu:4/2"}
    planned = [stage["planned_peak_bytes"] for stage in found["stages"]]
    assert planned == list(plan.pipeline.peak_bytes)
    for stage in found["stages"]:
        assert stage["compiled_peak_bytes"] == pytest.approx(stage["planned_peak_bytes"], rel=0.2)
    assert found["compiled_step_seconds"] > 0
    assert "fits into the" in capsys.readouterr().out


def test_a_module_that_is_split_into_tasks_is_read_as_it_is(plan, tmp_path, capsys):
    module = parse_bytes(plan.to_mlir().encode(), new_context(), "stages")
    run_passes(module, ["autoshard-split-stages"])
    (tmp_path / "stages.mlir").write_text(str(module))
    for more, said in (
        ([], r"the module is a pipeline of 2 stages. Give --cluster, that of all of them."),
        (["--cluster", "cpu:3"], "do not fall on 2 stages equally"),
        (["--cluster", "cpu:8"], "cluster cpu:8/2 has 4"),
        (["--cluster", "cpu:4", "--trace", "step.json"], "a pipeline of 2 stages is several"),
    ):
        assert main([str(tmp_path / "stages.mlir"), *more]) == 1
        assert said in capsys.readouterr().err
