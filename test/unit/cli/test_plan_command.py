"""``autoshard plan`` writes plans that run, also for what is left after failures."""

from __future__ import annotations

import runpy
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from autoshard.cli import main as command

SCRIPT = """
import jax

def step(w, x):
    return w - x.T @ (x @ w) % 3, (x @ w).sum()

def types(rows):
    return jax.ShapeDtypeStruct((16, 24), "float32"), jax.ShapeDtypeStruct((rows, 16), "float32")

def planned(cluster):
    return step, types(12 * cluster.num_devices), {"donate_argnums": 0}

def of_one_size():
    return step, types(24)

def too_large(cluster):
    return step, types(24), {"memory_limit": 1000 * cluster.num_devices}

def wrong():
    return step
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def run(*words: str | Path) -> int:
    return command.main(["plan", *map(str, words)])


def test_plans_for_failures_are_compiled_and_run(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster, folder = "cpu:3x2", tmp_path / "plans"
    asked = [f"{script}:planned", "--cluster", cluster, "--for-failures", "2", "-o", folder]
    assert run(*asked, "--compile") == 0
    assert capsys.readouterr().out.count("compiled, fits") == 3
    assert sorted(path.name for path in folder.iterdir()) == [
        "host-1.json",
        "host-2.json",
        "host-3.json",
    ]
    step = runpy.run_path(str(script))["step"]
    for hosts in (1, 3):
        weights = jnp.arange(16.0 * 24).reshape(16, 24) % 5
        x = jnp.arange(24.0 * hosts * 16).reshape(24 * hosts, 16) % 3 - 1
        expected = step(weights, x)
        jitted = autoshard.jit(step, plan=folder / f"host-{hosts}.json", donate_argnums=0)
        for one, other in zip(jitted(weights, x), expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_one_plan_is_one_file(script: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    assert run(f"{script}:of_one_size", "--cluster", "cpu:4", "-o", path) == 0
    assert autoshard.Plan.load(path).mesh.size == 4


def test_what_does_not_fit_is_a_row(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--cluster", "cpu:2x2", "--for-failures", "1", "-o", tmp_path / "plans"]
    assert run(f"{script}:too_large", *asked) == 2
    out = capsys.readouterr().out
    assert "no plan fits" in out
    assert not (tmp_path / "plans" / "host-1.json").exists()


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("train.py:wrong", "wrong returns function. It has to return the function, a tuple"),
        ("train.py:nothing", "train.py has no function nothing"),
        ("else.py:planned", "else.py:planned: there is no such script. Give FILE.py:NAME"),
    ],
)
def test_what_cannot_be_planned_is_said(
    script: Path,
    target: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(script.parent)
    assert run(target, "--cluster", "cpu:2", "-o", "plan.json") == 1
    assert said in capsys.readouterr().err
    assert not Path("plan.json").exists()
