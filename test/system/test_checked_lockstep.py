"""``plan.check()`` of pipelines in lockstep: right ones, and damaged programs of stages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from damaged_programs import damage
from lockstep_plans import planned
from stacked_layers import recomputed, scanned

import autoshard
from autoshard.cli.verify import main
from autoshard.ir import mlir


@pytest.fixture(scope="module")
def plan() -> autoshard.Plan:
    return planned(scanned, 2, 4, "data=4")


@pytest.mark.parametrize(
    ("forward", "stages", "micro_batches", "mesh"),
    [(scanned, 2, 4, "data=4"), (recomputed, 4, 8, "data=2"), (scanned, 4, 4, "model=2")],
)
def test_stages_that_are_split_give_what_whole_stages_give(
    forward: Any, stages: int, micro_batches: int, mesh: str
) -> None:
    found = planned(forward, stages, micro_batches, mesh).check()
    assert found.is_right, found.message
    assert found.mesh == f"stage={stages},{mesh}"
    assert found.compared > 0
    assert found.not_run == ()


def to_other_devices(op: mlir.Operation) -> None:
    """Let the devices of the stage that receives change places."""
    pairs = np.array(mlir.DenseIntElementsAttr(op.attributes["source_target_pairs"]))
    pairs = pairs.reshape(-1, 2)
    pairs[:, 1] = pairs[::-1, 1]
    text = f"dense<{pairs.tolist()}> : tensor<{len(pairs)}x2xi64>"
    op.attributes["source_target_pairs"] = mlir.Attribute.parse(text)


def of_other_stages(op: mlir.Operation) -> None:
    """Let each device gather from its own stage, not from the others."""
    groups = np.array(mlir.DenseIntElementsAttr(op.attributes["replica_groups"]))
    count = groups.size
    groups = np.arange(count).reshape(-1, 2)
    text = f"dense<{groups.tolist()}> : tensor<{len(groups)}x2xi64>"
    op.attributes["replica_groups"] = mlir.Attribute.parse(text)


@pytest.mark.parametrize(
    ("name", "change"),
    [("collective_permute", to_other_devices), ("all_gather", of_other_stages)],
)
def test_stages_that_send_to_the_wrong_devices_are_found(
    plan: autoshard.Plan, monkeypatch: pytest.MonkeyPatch, name: str, change: Any
) -> None:
    damage(monkeypatch, name, change)
    found = plan.check()
    assert not found.is_right
    assert found.differs is not None


def test_a_layer_that_is_split_wrongly_is_found(
    plan: autoshard.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def double(op: mlir.Operation) -> None:
        result = op.results[0]
        with mlir.InsertionPoint.after(op):
            twice = mlir.Operation.create("stablehlo.add", [result.type], [result, result])
        result.replace_all_uses_except(twice.results[0], twice)

    damage(monkeypatch, "maximum", double)
    found = plan.check()
    assert not found.is_right
    assert found.differs is not None
    assert found.differs.op == "stablehlo.maximum"
    assert found.differs.is_inside


def test_the_command_checks_a_module_in_lockstep(
    plan: autoshard.Plan, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "step.mlir"
    file.write_text(plan.to_mlir())
    assert main([str(file), "--check"]) == 0
    assert main([str(file), "--check", "--form", "gspmd"]) == 1
    assert "is written for Shardy alone" in capsys.readouterr().err
