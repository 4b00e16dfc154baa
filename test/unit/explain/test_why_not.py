"""``Plan.why_not``: alternatives, held fixed and planned again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from explain.programs import arguments, once, planned
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.errors import PlanError, ShardingError


def pins(name: str, path: str, spec: Any) -> Any:
    """``in_shardings`` with one parameter pinned."""
    params = jax.tree_util.tree_map_with_path(
        lambda at, _: spec if jax.tree_util.keystr(at) == path else None, arguments(name)[0]
    )
    return (params, None, None)


KERNEL = "['params']['Dense_0']['kernel']"
QUERY = "['params']['MultiHeadDotProductAttention_0']['query']['kernel']"


@pytest.mark.parametrize(
    ("name", "path", "spec", "text"),
    [
        ("mlp", KERNEL, P("a", None), "P('a', None)"),
        ("mlp", KERNEL, P(), "P()"),
        ("mlp", KERNEL, P(None, ("a", "b")), "[{}, {a, b}]"),
        ("attention", QUERY, P(None, "b"), "P(None, 'b')"),
        ("attention", QUERY, P("a", "b"), "P('a', 'b')"),
    ],
)
def test_it_agrees_with_planning_from_scratch_with_the_pin(
    name: str, path: str, spec: Any, text: str
) -> None:
    plan = once(name, mesh="a=4,b=2")
    found = plan.why_not(f"params{path}={text}")
    scratch = planned(name, mesh="a=4,b=2", in_shardings=pins(name, path, spec))
    assert found.extra_seconds is not None
    step = plan.step_seconds + found.extra_seconds
    # Starting from the plan as well may find what a search from nothing does not; and inputs may be
    # cut in one of them, for which that one says what it gives.
    assert scratch.summary is not None
    free = scratch.step_seconds - scratch.summary.inputs_seconds
    assert 0.96 * free < step < 1.012 * scratch.step_seconds


def test_what_the_plan_does_is_chosen() -> None:
    plan = once("mlp")
    (argument,) = [one for one in plan.arguments if one.name == f"params{KERNEL}"]
    found = plan.why_not(f"params{KERNEL}={argument.sharding}")
    assert (found.verdict, found.extra_seconds, found.diff) == ("chosen", 0.0, None)


def test_what_is_dearer_says_by_which_terms_and_what_else_changes() -> None:
    found = once("mlp", mesh="a=8").why_not("params.params.*.kernel=P()")
    assert found.verdict == "dearer"
    assert found.diff is not None
    terms = {term.name: term.change for term in found.diff.terms}
    assert found.extra_seconds == terms["step"]
    assert terms["step"] == pytest.approx(terms["compute"] + terms["communication"])
    assert any("kernel" in one.name for one in found.diff.values)
    assert "dearer: a step takes" in str(found)


def test_what_does_not_fit_says_by_how_much_and_which_tensors() -> None:
    least = once("mlp", mesh="a=8").peak_bytes
    plan = planned("mlp", mesh="a=8", memory_limit=1.2 * least)
    found = plan.why_not("params.params.*.kernel=P()", "*.*.mu.params.*.kernel=P()")
    assert found.verdict == "does not fit"
    assert found.missing_bytes > 0
    assert any("kernel" in tensor.name for tensor in found.tensors)
    assert "allowed" in found.reason
    assert found.diff is not None


def test_what_is_impossible_names_the_rule_and_the_divisor() -> None:
    plan = autoshard.plan(
        lambda w, x: (x @ w).sum(),
        jax.ShapeDtypeStruct((64, 250), jnp.float32),
        jax.ShapeDtypeStruct((64, 64), jnp.float32),
        cluster="v5e:4x2",
        mesh="a=8",
    )
    found = plan.why_not("w=P(None, 'a')")
    assert found.verdict == "impossible"
    assert "250" in found.reason
    assert "8" in found.reason


def test_contradicting_alternatives_are_impossible() -> None:
    plan = planned("mlp", mesh="a=8", in_shardings=pins("mlp", KERNEL, P("a", None)))
    found = plan.why_not(f"params{KERNEL}=P(None, 'a')")
    assert found.verdict == "impossible"
    assert "pins contradict" in found.reason


def test_another_mesh_is_planned_as_it_would_be_from_scratch() -> None:
    plan = once("mlp")
    found = plan.why_not(mesh="a=2,b=4")
    scratch = once("mlp", mesh="a=2,b=4")
    assert found.extra_seconds is not None
    assert plan.step_seconds + found.extra_seconds == pytest.approx(scratch.step_seconds, rel=2e-3)
    assert plan.why_not("mesh=a=3").verdict == "impossible"


def test_an_option_is_planned_as_it_would_be_from_scratch() -> None:
    plan = once("mlp")
    found = plan.why_not(enable_alltoall=False)
    assert found.verdict in ("chosen", "dearer")
    assert plan.why_not("recompute=auto").verdict == "chosen"
    refused = plan.why_not(memory_limit=1e6)
    assert refused.verdict == "does not fit"
    assert refused.missing_bytes > 0


def test_a_line_and_a_saved_plan_can_be_asked_about(tmp_path: Path) -> None:
    plan = once("mlp", mesh="a=8")
    lines = {op.location for op in plan.ops if op.name == "dot_general" and op.location}
    line = min(lines).rsplit(":", 1)[0].rsplit("/", 1)[1]
    plan.save(tmp_path / "plan.json")
    loaded = autoshard.Plan.load(tmp_path / "plan.json")
    found = [one.why_not(f"{line}=P('a', None)") for one in (plan, loaded)]
    assert found[0].reason == found[1].reason
    with pytest.raises(PlanError, match="a mesh, and how values are cut, can be asked of any plan"):
        loaded.why_not(recompute="auto")


def test_questions_that_cannot_be_read_are_refused() -> None:
    plan = once("mlp", mesh="a=8")
    with pytest.raises(PlanError, match=r"no argument or result is called 'kernle'"):
        plan.why_not("kernle=P()")
    with pytest.raises(PlanError, match="says no way to cut a value"):
        plan.why_not("Dense_0.kernel=whole")
    with pytest.raises(ShardingError, match='"z"'):
        plan.why_not("Dense_0.kernel=P('z')")
    with pytest.raises(PlanError, match="does not say what instead"):
        plan.why_not("Dense_0.kernel")
    with pytest.raises(PlanError, match="why not what"):
        plan.why_not()
    with pytest.raises(PlanError, match="cut is no option of"):
        plan.why_not(cut="a")
    with pytest.raises(PlanError, match="asked about together"):
        plan.why_not("Dense_0.kernel=P()", recompute="auto")
