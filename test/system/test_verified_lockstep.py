"""Pipelines in lockstep beside the one program that a compiler makes of all stages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lockstep_plans import BATCH, WIDTH, planned
from stacked_layers import recomputed, scanned

import autoshard
from autoshard.cli.verify import main
from autoshard.exporter import blocks
from autoshard.planned.collective import CollectiveKind
from autoshard.sharding import AxisRef
from autoshard.verify.matching import Verdict

STAGE = (AxisRef("stage"),)


@pytest.fixture(scope="module")
def plan() -> autoshard.Plan:
    return planned(scanned, 2, 4, "data=4")


def over_stages(found: Any) -> dict[CollectiveKind, Verdict]:
    """Verdicts of the collectives between stages, by the kind that was compiled."""
    return {
        row.compiled.kind: row.verdict
        for row in found.collectives.rows
        if row.compiled is not None and row.compiled.axes == STAGE
    }


@pytest.mark.parametrize(
    ("forward", "stages", "micro_batches", "mesh"),
    [(scanned, 2, 4, "data=4"), (recomputed, 4, 8, "data=2"), (scanned, 4, 4, "model=2")],
)
def test_what_stages_send_each_other_is_compiled_as_planned(
    forward: Any, stages: int, micro_batches: int, mesh: str
) -> None:
    plan = planned(forward, stages, micro_batches, mesh)
    found = plan.verify()
    assert found.mesh == f"stage={stages},{mesh}"
    assert found.fits
    assert found.moved == ()
    assert not found.rematerializations
    assert over_stages(found) == dict.fromkeys(
        (
            CollectiveKind.PERMUTE,
            CollectiveKind.ALL_GATHER,
            CollectiveKind.ALL_TO_ALL,
            CollectiveKind.ALL_REDUCE,
        ),
        Verdict.AS_PLANNED,
    )
    assert found.predicted.step_seconds == plan.step_seconds
    assert found.predicted.peak_bytes_per_device == plan.peak_bytes
    turns = stages + micro_batches - 1
    handed_on = [one for one in found.predicted.collectives if one.kind == "collective-permute"]
    held = 4 * WIDTH * BATCH / micro_batches / (8 / stages)
    assert [(one.axes, one.times, one.bytes) for one in handed_on] == [
        (("stage",), turns, held)
    ] * 2
    assert found.schedule is not None
    assert found.schedule.scheduled_seconds > 0


def test_a_collective_that_is_not_planned_is_said(
    plan: autoshard.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partitioner makes what stages gather and exchange whole, if that is left to it."""
    monkeypatch.setattr(blocks, "_moves_between_stages", lambda _: False)
    found = plan.verify()
    unplanned = [row.compiled for row in found.unplanned if row.verdict is Verdict.NOT_PLANNED]
    assert (CollectiveKind.ALL_GATHER, (AxisRef("data"),)) in {
        (one.kind, one.axes) for one in unplanned if one is not None
    }
    assert found.collectives is not None
    assert found.collectives.compiled_bytes > 1.1 * found.collectives.planned_bytes
    assert "not planned" in str(found)


def test_rows_of_layers_that_lie_elsewhere_are_said(
    plan: autoshard.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autoshard.passes import export_lockstep

    real = export_lockstep.rows_at
    monkeypatch.setattr(
        export_lockstep,
        "rows_at",
        lambda main, side: [None if side == "res_attrs" else at for at in real(main, side)],
    )
    found = plan.verify()
    assert found.moved
    assert all(one.planned.startswith("[{stage}, ") for one in found.moved)
    assert not found.ok


def test_a_module_in_lockstep_is_verified_for_all_devices(
    plan: autoshard.Plan, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "step.mlir"
    file.write_text(plan.to_mlir())
    said = tmp_path / "found.json"
    assert main([str(file), "--cluster", "cpu:8", "--json", str(said)]) == 0
    found = json.loads(said.read_text())
    assert found["mesh"] == "stage=2,data=4"
    assert found["program"]["target"] == "cpu:8"
    for more, error in (
        ([], "that of one of 2 stages in lockstep. Give --cluster, that of all of them."),
        (["--cluster", "cpu:4"], "the plan is for 8 devices"),
        (["--cluster", "cpu:8", "--form", "gspmd"], "is written for Shardy alone"),
    ):
        assert main([str(file), *more]) == 1
        assert error in capsys.readouterr().err
