"""A plan that was made before is run for its program, and for no other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard

W = jnp.arange(64.0 * 64).reshape(64, 64) % 5 - 2
X = jnp.arange(32.0 * 64).reshape(32, 64) % 7 - 3


def step(w, x):
    return w + 1, (x @ w).sum(0)


def scaled(w, x):
    return w + 1, (x @ w).sum(0) * 2


@pytest.fixture
def plan():
    return autoshard.plan(step, W, X, cluster="cpu:8", donate_argnums=0)


def test_it_is_run_and_nothing_is_planned(plan, tmp_path, monkeypatch):
    plan.save(tmp_path / "plan.json")
    monkeypatch.setattr("autoshard.frontend.jit.plan_source", None)
    for kept in (plan, autoshard.Plan.load(tmp_path / "plan.json"), tmp_path / "plan.json"):
        run = autoshard.jit(step, plan=kept, donate_argnums=0)
        weights, total = run(*plan.place(jnp.copy(W), X))
        np.testing.assert_array_equal(weights, W + 1)
        np.testing.assert_array_equal(total, (X @ W).sum(0))
        assert weights.sharding == plan.out_shardings[0]
        assert run.plan(W, X) == plan


def test_a_plan_of_a_mesh_and_marks_is_run(tmp_path):
    layout = autoshard.Layout((2, 4), ("dp", "tp"))
    columns = autoshard.shard(jnp.matmul, (layout("dp", "None"), layout("None", "tp")))
    made = autoshard.plan(lambda x, w: columns(x, w), X, W)
    found = autoshard.jit(lambda x, w: columns(x, w), plan=made)(X, W)
    np.testing.assert_array_equal(found, X @ W)
    assert found.sharding == made.out_shardings


def test_another_program_is_refused_with_the_line_that_differs(plan):
    with pytest.raises(
        autoshard.PlanError,
        match=r"scaled: the plan is for another program: .* lines of StableHLO, .*"
        r"test_kept_plan\.py:\d+: .*broadcast_in_dim",
    ):
        autoshard.jit(scaled, plan=plan, donate_argnums=0)(W, X)


def test_other_arguments_are_refused_by_name(plan):
    with pytest.raises(
        autoshard.PlanError, match=r"x was float32\[32, 64\], it is bfloat16\[32, 64\]"
    ):
        autoshard.jit(step, plan=plan, donate_argnums=0)(W, X.astype(jnp.bfloat16))
    with pytest.raises(autoshard.PlanError, match=r"y float32\[\] is new"):
        autoshard.jit(lambda w, x, y: step(w, x), plan=plan)(W, X, jnp.float32(1))


def test_another_compiler_is_refused(plan, tmp_path):
    path = tmp_path / "plan.json"
    plan.save(path)
    compiler = plan.fingerprint.compiler
    path.write_text(path.read_text().replace(f'"{compiler}"', '"xla-cpu-9.9.9"'))
    with pytest.raises(autoshard.PlanError, match=rf"was xla-cpu-9\.9\.9, it is {compiler}"):
        autoshard.jit(step, plan=path, donate_argnums=0)(W, X)


def test_what_plans_otherwise_would_say_nothing(plan):
    with pytest.raises(autoshard.PlanError, match="cluster, mode would say nothing"):
        autoshard.jit(step, plan=plan, cluster="cpu:8", mode="auto")
    with pytest.raises(autoshard.PlanError, match="refine would say nothing"):
        autoshard.jit(step, plan=plan, refine=2)
    with pytest.raises(autoshard.PlanError, match="update='always' is not known"):
        autoshard.jit(step, plan=plan, update="always")
    with pytest.raises(autoshard.PlanError, match="says what becomes of plan=, which is not given"):
        autoshard.jit(step, update="if-better")
    with pytest.raises(autoshard.PlanError, match="7 is no plan"):
        autoshard.jit(step, plan=7)
    with pytest.raises(autoshard.PlanError, match=r"there is no such file.*update='if-better'"):
        autoshard.jit(step, plan="no/such.json")(W, X)


def test_calls_into_python_have_no_name_in_another_process():
    def tells(x):
        jax.debug.callback(lambda _: None, x.sum())
        return x * 2

    made = autoshard.plan(tells, X, cluster="cpu:8")
    with pytest.raises(autoshard.PlanError, match="calls back into Python, which a plan"):
        autoshard.jit(tells, plan=made)(X)


def test_an_update_makes_the_file_and_keeps_the_better_plan(tmp_path):
    path = tmp_path / "plan.json"
    slow = autoshard.plan(
        step, W, X, cluster="cpu:8", in_shardings=jax.sharding.PartitionSpec(), mesh="d=8"
    )
    run = autoshard.jit(step, plan=path, update="if-better", cluster="cpu:8", mesh="d=8")
    run(W, X)
    first = autoshard.Plan.load(path)
    assert first == run.plan(W, X)
    assert first.step_seconds < slow.step_seconds
    pinned = autoshard.jit(
        step,
        plan=path,
        update="if-better",
        cluster="cpu:8",
        mesh="d=8",
        in_shardings=jax.sharding.PartitionSpec(),
    )
    assert pinned.plan(W, X) == first
    slow.save(path)
    faster = autoshard.jit(step, plan=path, update="if-better", mesh="d=8").plan(W, X)
    assert faster.arguments == first.arguments != slow.arguments
    assert autoshard.Plan.load(path) == faster


def test_an_update_plans_a_changed_program(plan, tmp_path):
    path = tmp_path / "plan.json"
    plan.save(path)
    found = autoshard.jit(scaled, plan=path, update="if-better")(W, X)
    np.testing.assert_array_equal(found[1], (X @ W).sum(0) * 2)
    assert autoshard.Plan.load(path).name == "scaled"
