"""The plan that was made last is asked about without reading its module again."""

from __future__ import annotations

import gc
import weakref

import pytest
from explained_plans import step

import autoshard
from autoshard.explain import record_build
from autoshard.frontend.plan import Plan
from autoshard.frontend.searched import Searched


def make(cluster="v5e:4x2") -> Plan:
    import jax
    import jax.numpy as jnp

    def array(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    layers = [{"up": array(256, 1024), "down": array(1024, 256)}] * 3
    return autoshard.plan(step, layers, array(512, 256), cluster=cluster)


def test_the_newest_plan_tells_the_same_as_its_file_without_reading_it(tmp_path, monkeypatch):
    plan = make()
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    from_file, why = again.record, str(again.why(1))

    def read_again(*_):
        pytest.fail("the module was read again")

    monkeypatch.setattr(record_build, "cost_of_module", read_again)
    monkeypatch.setattr(Plan, "_module", read_again)
    assert plan.record.to_json() == from_file.to_json()
    assert str(plan.why(1)) == why


def test_an_older_plan_reads_its_module_and_tells_the_same():
    first = make()
    told = first.record.to_json()
    older = make()
    make("v5e:2x2")
    assert older.searched is not None
    assert older.searched.program is None
    assert older.record.ops == first.record.ops
    assert older.record.collectives == first.record.collectives
    assert len(older.record.to_json()) == pytest.approx(len(told), abs=200)


def test_what_a_search_read_goes_with_its_plan():
    plan = make()
    assert plan.searched is not None
    assert plan.searched.program is not None
    kept = weakref.ref(plan.searched)
    del plan
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("is_older", [False, True])
def test_what_was_read_for_a_question_goes_when_another_plan_is_made(is_older):
    plan = make()
    if is_older:
        make("v5e:2x2")
    plan.why(1)
    module, costed = weakref.ref(plan.subject.module), weakref.ref(plan.subject.costed)
    make("v5e:2x2")
    gc.collect()
    assert module() is None
    assert costed() is None
    assert str(plan.why(1))


def test_an_answer_still_has_its_program_when_another_plan_is_made():
    plan = make()
    outcome = plan.frontier().outcomes[-1]
    make("v5e:2x2")
    gc.collect()
    assert plan.subject.summarized(outcome).step_seconds > 0


def test_a_compiled_function_keeps_no_module_that_was_asked_about():
    import jax.numpy as jnp

    layers = [{"up": jnp.ones((64, 128)), "down": jnp.ones((128, 64))}]
    planned = autoshard.jit(step, mesh="data=8", cluster="cpu:8")
    plan = planned.plan(layers, jnp.ones((64, 64)))
    module = weakref.ref(plan.subject.module)
    planned(layers, jnp.ones((64, 64)))
    gc.collect()
    assert module() is None


@pytest.mark.parametrize("moment", ["module", "costed"])
def test_a_plan_that_another_thread_makes_meanwhile_does_not_disturb(moment):
    class Program:
        """Forgotten while it is read."""

        @property
        def module(self):
            return self.read("module")

        def costed(self):
            return self.read("costed")

        def read(self, what):
            if what == moment:
                searched.forget()
            return what

    searched = Searched(Program())
    assert searched.known == ("module", "costed")
    assert searched.known is None
    assert searched._costed is None
