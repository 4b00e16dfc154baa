"""``autoshard why`` and ``autoshard frontier`` on files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from explain.programs import once

from autoshard import Plan
from autoshard.cli.main import main


@pytest.fixture
def saved(tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    once("mlp", mesh="a=8").save(path)
    return str(path)


def test_causes_and_alternatives_are_printed(
    saved: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["why", saved, "1"]) == 0
    assert "without it: " in capsys.readouterr().out
    assert main(["why", saved, "--not", "Dense_0.kernel=P()"]) == 0
    assert "dearer" in capsys.readouterr().out
    assert main(["why", saved, "--not", "mesh=a=3"]) == 2
    assert "impossible" in capsys.readouterr().out


def test_a_planned_module_can_be_asked_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "planned.mlir"
    path.write_text(once("mlp", mesh="a=8").to_mlir())
    assert main(["why", str(path), "1"]) == 0
    assert "without it: " in capsys.readouterr().out


def test_what_cannot_be_asked_of_a_file_is_said(
    saved: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["why", saved, "--not", "recompute=auto"]) == 1
    assert "planning the function again" in capsys.readouterr().err
    assert main(["why", saved]) == 1
    assert "give either WHAT" in capsys.readouterr().err


def test_the_frontier_is_printed_also_as_json(
    saved: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["frontier", saved]) == 0
    assert "mem_coeff" in capsys.readouterr().out
    assert main(["frontier", saved, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[0]["step_seconds"] <= Plan.load(saved).step_seconds
    assert rows == sorted(rows, key=lambda row: row["step_seconds"])
