"""Which plans of pipelines in lockstep are compiled; the compiler is stood in for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

import autoshard
from autoshard.errors import CompileError
from autoshard.frontend import refining
from autoshard.frontend.planned_lockstep import LockstepPipeline
from autoshard.rewrites.lockstep.step import lockstep_of
from autoshard.search.automatic import Planned

LAYERS, WIDTH, BATCH = 4, 256, 4096

Says = Callable[[int, str], float]
"""Seconds as scheduled, by the turns between stages and the mesh."""


def step(weights: Any, x: Any) -> Any:
    def loss(weights: Any) -> Any:
        made, _ = jax.lax.scan(lambda h, w: (jax.numpy.tanh(h @ w), None), x, weights)
        return (made**2).sum()

    return weights - 0.1 * jax.grad(loss)(weights)


def planned(cluster: str, mesh: str | None = None, batch: int = BATCH) -> autoshard.Plan:
    return autoshard.plan(
        step,
        jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), "float32"),
        jax.ShapeDtypeStruct((batch, WIDTH), "float32"),
        cluster=cluster,
        mesh=mesh,
        pipeline=autoshard.Pipeline(2, 4, execution="lockstep"),
        batch_argnums=1,
    )


def delay_of(plan: autoshard.Plan) -> int:
    """Turns from one stage to the next."""
    assert isinstance(plan.pipeline, LockstepPipeline)
    return plan.pipeline.delay


def refined(
    plan: autoshard.Plan, says: Says, monkeypatch: pytest.MonkeyPatch, compiles: int = 99
) -> autoshard.Plan:
    """The plan that is taken by a compiler that says these seconds."""

    def verifier(cluster: Any, **_: Any) -> Any:
        assert plan.pipeline is not None
        assert cluster == plan.pipeline.cluster, "all devices"

        def verify(made: Planned, *_: Any) -> Any:
            assert made.summary is not None
            with made.module.context:
                shape = lockstep_of(made.module)
            assert shape is not None
            seconds = says(shape.delay, made.summary.mesh)
            schedule = SimpleNamespace(
                scheduled_seconds=seconds, nothing_hidden_seconds=9.0, all_hidden_seconds=0.0
            )
            program = SimpleNamespace(needed_bytes=1)
            return SimpleNamespace(fits=True, schedule=schedule, program=program)

        return verify

    monkeypatch.setattr(refining, "verifier", verifier)
    return plan.refine(compiles)


def test_the_other_delay_is_a_plan_of_its_own_where_compilers_hide_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = planned("v5e:2x4")
    own = delay_of(plan)
    taken = refined(plan, lambda delay, _: float(delay == own), monkeypatch)
    assert delay_of(taken) == 3 - own
    assert taken.refinement is not None
    said = taken.refinement.taken
    assert said.mesh == str(taken.mesh) + (", delay 2" if own == 1 else "")
    assert said.modelled_seconds == taken.step_seconds > plan.step_seconds
    assert said.modelled_scheduled_seconds == said.modelled_seconds
    assert taken.arguments[0].shape == (LAYERS, WIDTH, WIDTH)
    assert taken.arguments[0].stage_cut == (0, 2)


def test_compilers_that_hide_nothing_are_asked_for_one_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = planned("h100:2x4", batch=1024)  # a large batch is cut by all meshes alike
    taken = refined(small, lambda _, mesh: len(mesh), monkeypatch)
    assert taken.refinement is not None
    meshes = [one.mesh for one in taken.refinement.attempts]
    assert len(meshes) > 1
    assert not any("delay" in mesh for mesh in meshes)
    assert str(taken.mesh) == min(meshes, key=len)


def test_a_mesh_that_is_given_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = refined(planned("h100:2x4", "data=4"), lambda *_: 1.0, monkeypatch)
    assert taken.refinement is not None
    assert [one.mesh for one in taken.refinement.attempts] == ["data=4"]


def test_the_plan_of_the_search_stays_where_it_is_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = planned("v5e:2x4")
    own = delay_of(plan)
    taken = refined(plan, lambda delay, _: float(delay != own), monkeypatch, 1)
    assert taken.bytecode == plan.bytecode
    again = refined(taken, lambda delay, _: float(delay == own), monkeypatch)
    assert delay_of(again) == 3 - own


def test_what_was_refined_is_kept_between_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AUTOSHARD_CACHE", str(tmp_path))
    plan = planned("v5e:2x4")
    own = delay_of(plan)
    compiled: list[int] = []

    def says(delay: int, _: str) -> float:
        compiled.append(delay)
        return float(delay == own)

    taken = refined(plan, says, monkeypatch)
    count = len(compiled)
    again = refined(planned("v5e:2x4"), says, monkeypatch)
    assert len(compiled) == count > 1
    assert again.bytecode == taken.bytecode
    assert again.refinement is None
    refined(plan, says, monkeypatch, 2)
    assert len(compiled) == count + 2
    newer = SimpleNamespace(installed=lambda: "9.9")
    monkeypatch.setattr(refining, "read_compiler", lambda name: newer)
    refined(plan, says, monkeypatch)
    assert len(compiled) == 2 * count + 2


def test_a_plan_that_no_compiler_could_choose_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AUTOSHARD_CACHE", str(tmp_path))
    plan = planned("h100:2x4", "data=4")
    kept = set(tmp_path.iterdir())

    def says(*_: object) -> float:
        raise CompileError("the compiler ended", reason="killed")

    with pytest.warns(autoshard.AutoshardWarning, match="no plan was compiled"):
        refined(plan, says, monkeypatch)
    assert set(tmp_path.iterdir()) == kept


def test_programs_for_each_stage_are_refused() -> None:
    def unrolled(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            return ((jax.numpy.tanh(x @ weights[0]) @ weights[1]) ** 2).sum()

        return weights - 0.1 * jax.grad(loss)(weights)

    plan = autoshard.plan(
        unrolled,
        jax.ShapeDtypeStruct((2, WIDTH, WIDTH), "float32"),
        jax.ShapeDtypeStruct((BATCH, WIDTH), "float32"),
        cluster="h100:2x4",
        pipeline=autoshard.Pipeline(2, 4),
        batch_argnums=1,
    )
    with pytest.raises(autoshard.PlanError, match="refine is for one program"):
        plan.refine()


def test_a_plan_has_the_options_with_which_it_is_fastest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def verifier(cluster: Any, **_: Any) -> Any:
        def verify(made: Planned, _: float, __: Any, options: Mapping[str, Any]) -> Any:
            schedule = SimpleNamespace(
                scheduled_seconds=1.0 if "xla_fast" in options else 2.0,
                nothing_hidden_seconds=9.0,
                all_hidden_seconds=0.0,
            )
            program = SimpleNamespace(needed_bytes=1)
            return SimpleNamespace(fits=True, schedule=schedule, program=program, estimate=None)

        return verify

    monkeypatch.setattr(refining, "verifier", verifier)
    weights = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), "float32")
    x = jax.ShapeDtypeStruct((BATCH, WIDTH), "float32")
    given = {"xla_other": "2"}
    asked = {"compiles": 1, "options": ["maxtext-v5e", {"xla_fast": "1"}]}
    monkeypatch.setenv("AUTOSHARD_CACHE", str(tmp_path))
    plan, again = (
        autoshard.jit(step, cluster="v5e:2x4", compiler_options=given, refine=asked).plan(
            weights, x
        )
        for _ in range(2)
    )
    assert again.refinement is None, "it is kept"
    assert again.compiler_options == plan.compiler_options
    assert plan.compiler_options == {"xla_other": "2", "xla_fast": "1"}
    assert plan.refinement is not None
    assert [one.kind for one in plan.refinement.attempts] == ["", "maxtext-v5e", "xla_fast=1"]


def test_jit_names_the_arguments_of_refine():
    with pytest.raises(autoshard.PlanError, match=r"no argument compile\. There are compiles, sec"):
        autoshard.jit(step, cluster="v5e:2x4", refine={"compile": 4})


def test_one_set_of_options_may_stand_alone():
    plan = autoshard.plan(
        step,
        jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), "float32"),
        jax.ShapeDtypeStruct((BATCH, WIDTH), "float32"),
        cluster="v5e:2x4",
    )
    with pytest.raises(autoshard.PlanError, match='no set of options is called "maxtext-v5"'):
        plan.refine(1, options="maxtext-v5")
