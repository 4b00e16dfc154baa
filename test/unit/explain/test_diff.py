"""``Plan.diff`` and ``autoshard diff``."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.cli import diff as command
from autoshard.cli.main import main
from autoshard.errors import ParseError, PlanError
from autoshard.explain.diff import diff_files

WEIGHTS = {f"w{n}": jax.ShapeDtypeStruct((1024, 1024), jnp.float32) for n in range(4)}
BATCH = jax.ShapeDtypeStruct((512, 1024), jnp.float32)


def loss(weights: Any, x: Any) -> Any:
    for name in sorted(weights):
        x = jax.nn.relu(x @ weights[name])
    return jnp.mean(x)


def step(weights: Any, x: Any) -> Any:
    gradients = jax.grad(loss)(weights, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)


def step_with_a_new_line(weights: Any, x: Any) -> Any:
    x = jnp.tanh(x)
    gradients = jax.grad(loss)(weights, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)


@functools.cache
def planned(pin: Any = None, mesh: str = "a=8", cluster: str | None = "v5e:4x2") -> autoshard.Plan:
    pins = None if pin is None else (dict.fromkeys(WEIGHTS, pin), None)
    return autoshard.plan(
        step, WEIGHTS, BATCH, mesh=mesh, cluster=cluster, in_shardings=pins, donate_argnums=0
    )


def test_a_plan_does_not_differ_from_itself_nor_from_the_same_with_other_names() -> None:
    found = planned().diff(planned(mesh="b=8"))
    assert found.is_same
    assert "The plans are the same." in str(found)


def test_a_path_is_no_plan() -> None:
    with pytest.raises(PlanError, match=r"'old.json'.*autoshard.Plan.load"):
        planned().diff("old.json")  # pyright: ignore[reportArgumentType]


def test_a_mesh_of_another_shape_is_no_change_where_devices_have_the_same_pieces() -> None:
    found = planned(P("a", None)).diff(planned(P(("a", "b"), None), mesh="a=4,b=2"))
    assert not [one for one in found.values if one.name.startswith("weights")]
    other = planned(P("a", None)).diff(planned(P("a", None), mesh="a=4,b=2"))
    (weights,) = [one for one in other.values if one.name.startswith("weights")]
    assert weights.count == 4


def test_equal_changes_are_one_row_and_terms_are_those_of_the_plans() -> None:
    before, after = planned(P("a", None)), planned(P(None, "a"))
    found = before.diff(after)
    (weights,) = [one for one in found.values if one.name.startswith("weights")]
    assert (weights.name, weights.before, weights.after) == (
        "weights['w*']",
        "[{a}, {}]",
        "[{}, {a}]",
    )
    assert weights.count == 4
    terms = {term.name: (term.before, term.after) for term in found.terms}
    assert terms["step"] == (before.step_seconds, after.step_seconds)
    assert terms["peak of memory"] == (before.peak_bytes, after.peak_bytes)


def test_collectives_that_are_new_or_gone_are_said() -> None:
    whole, cut = planned(P()), planned(P(None, "a"))
    found = cut.diff(whole)
    text = str(found)
    assert any(one.is_new or one.is_gone for one in found.collectives)
    moved = sum(one.after_seconds - one.before_seconds for one in found.collectives)
    difference = whole.communication_seconds - cut.communication_seconds
    assert moved == pytest.approx(difference, rel=1e-6)
    assert "none" in text


def test_another_revision_is_compared_by_what_its_values_are_called() -> None:
    other = autoshard.plan(
        step_with_a_new_line,
        WEIGHTS,
        BATCH,
        mesh="a=8",
        cluster="v5e:4x2",
        in_shardings=({**dict.fromkeys(WEIGHTS, P("a", None)), "w3": P(None, "a")}, None),
        donate_argnums=0,
    )
    found = planned(P("a", None)).diff(other)
    rows = {one.name: one for one in found.values}
    assert rows["weights['w3']"].after == "[{}, {a}]"
    assert not any(name.startswith("weights['w0']") for name in rows)
    assert rows["tanh"].before == ""


def test_plans_without_a_cluster_are_compared_by_values_and_bytes() -> None:
    def propagated(pin: Any) -> autoshard.Plan:
        pins = (dict.fromkeys(WEIGHTS, pin), None)
        return autoshard.plan(step, WEIGHTS, BATCH, mesh="a=8", in_shardings=pins)

    found = propagated(P("a")).diff(propagated(P(None, "a")))
    assert found.terms == ()
    assert found.values
    assert any(one.after_bytes for one in found.collectives)


def test_files_are_compared_and_a_slower_plan_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow, fast = planned(P()), planned()
    assert slow.step_seconds > 1.05 * fast.step_seconds
    before, after = str(tmp_path / "a.json"), str(tmp_path / "b.mlir")
    fast.save(before)
    Path(after).write_text(slow.to_mlir())
    assert main(["diff", before, after]) == command.OK
    assert "step" in capsys.readouterr().out
    assert main(["diff", before, after, "--fail-if-slower", "2%"]) == command.GREW
    assert "more than the 2.00% that are allowed" in capsys.readouterr().err
    assert main(["diff", before, before, "--fail-if-slower", "0"]) == command.OK


def test_a_summary_is_written_as_markdown_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "a.json")
    planned().save(path)
    markdown, as_json = tmp_path / "summary.md", tmp_path / "diff.json"
    planned(P()).save(tmp_path / "b.json")
    arguments = [path, str(tmp_path / "b.json"), "--markdown", str(markdown)]
    assert main(["diff", *arguments, "--json", str(as_json)]) == command.OK
    assert "| step | " in markdown.read_text()
    assert json.loads(as_json.read_text())["terms"][0]["name"] == "step"
    assert main(["diff", *arguments[:2], "--markdown", "-"]) == command.OK
    assert "<details>" in capsys.readouterr().out


def test_what_is_no_plan_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.json"
    path.write_text("{}")
    with pytest.raises(ParseError, match="no plan can be read"):
        diff_files(path, path)
    assert main(["diff", str(path), str(path)]) == 1
    assert "Give a file that plan.save wrote" in capsys.readouterr().err
