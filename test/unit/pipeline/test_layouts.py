"""What only tasks of one stage see lies in memory as the compiler of the first of them likes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.cluster import Cluster
from autoshard.ir.attributes import ANY_ORDER, LAYOUT_MODE
from autoshard.ir.boundary import entries_at, main_function
from autoshard.pipeline.layouts import Layouts, inside_of_stages
from autoshard.pipeline.modules import copy_of
from autoshard.rewrites.stage_tasks.program import Call

pytestmark = pytest.mark.filterwarnings("ignore:.*the arrays of the batch are cut unlike")

TPU = Cluster.of("v5e:2x2")


def step(params: Any, batch: Any) -> Any:
    def loss(params: Any) -> Any:
        hidden = batch
        for stage, weights in enumerate(params):
            layer = autoshard.pipeline_stage(lambda h, w: jnp.tanh(h @ w), stage)
            hidden = layer(hidden, weights)
        return hidden.sum()

    value, gradients = jax.value_and_grad(loss)(params)
    return [p - g for p, g in zip(params, gradients, strict=True)], value


@pytest.fixture(scope="module")
def staged() -> Any:
    matrix = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    rows = jax.ShapeDtypeStruct((8, 16), jnp.float32)
    pipeline = autoshard.Pipeline(2, 2, "1f1b")
    plan = autoshard.plan(
        step, [matrix] * 2, rows, cluster=TPU, pipeline=pipeline, batch_argnums=1, donate_argnums=0
    )
    assert plan.pipeline is not None
    return plan.pipeline.step


def test_neither_what_is_sent_nor_what_the_caller_or_the_loop_has_is_inside(staged: Any) -> None:
    program = staged.program
    calls = {call.task.name: call for call in program.calls}
    sent = {one.operand for one in program.transfers}
    carried = {value for one in program.carried for value in (one.start, one.argument, one.update)}
    kept = {
        call.operands[place]
        for name, call in calls.items()
        for place in staged.inside[name].operands
    }
    assert kept, "the first stage keeps what its backward pass reads"
    assert not kept & {*sent, *carried, *program.arguments, *program.results}
    for name, call in calls.items():
        for place, (maker, at) in staged.inside[name].operands.items():
            assert at in staged.inside[maker].results
            made = next(one for one in _all_calls(program) if one.task.name == maker)
            assert made.results[at] == call.operands[place]
            assert made.task.stage == call.task.stage


def _all_calls(program: Any) -> list[Call]:
    steps = (*program.before, *program.loop, *program.after)
    return [one for one in steps if isinstance(one, Call)]


def test_a_compiler_that_lays_out_all_results_alike_is_not_asked(staged: Any) -> None:
    compiler = TPU.with_compiler(f"{TPU.compiler}:without=layout.chosen_results").compiler
    assert inside_of_stages(staged.program, compiler) == {}
    assert inside_of_stages(staged.program, Cluster.of("cpu:4").compiler) == {}


def test_tasks_are_compiled_behind_those_that_lay_out_what_they_read(staged: Any) -> None:
    layouts, seen = Layouts(staged.inside), list[str]()
    names = [task.name for task in staged.program.tasks]
    for ready in layouts.in_turn(names):
        makers = {maker for name in ready for maker, _ in staged.inside[name].operands.values()}
        assert makers <= set(seen)
        seen += ready
    assert sorted(seen) == sorted(names)
    assert len(list(Layouts({}).in_turn(names))) == 1, "at once, where nothing is chosen"


def test_readers_are_compiled_for_what_was_chosen_and_makers_again_for_the_same(
    staged: Any,
) -> None:
    layouts = Layouts(staged.inside)
    reader = next(name for name, inside in staged.inside.items() if inside.operands)
    place, (maker, at) = next(iter(staged.inside[reader].operands.items()))
    assert _said(layouts, staged, maker, "res_attrs")[at] == ANY_ORDER
    assert place not in _said(layouts, staged, reader, "arg_attrs")
    results = len(entries_at(main_function(staged.modules[maker]), "res_attrs"))
    layouts.keep(maker, ["{0,1:T(8,128)}"] * results)
    assert _said(layouts, staged, reader, "arg_attrs")[place] == "{0,1:T(8,128)}"
    again = _said(layouts, staged, maker, "res_attrs")
    assert again == dict.fromkeys(staged.inside[maker].results, "{0,1:T(8,128)}")


def _said(layouts: Layouts, staged: Any, name: str, side: Any) -> dict[int, str]:
    module = copy_of(staged.modules[name])
    layouts.lay_out(module, name)
    return {
        place: str(entry[LAYOUT_MODE]).strip('"')
        for place, entry in enumerate(entries_at(main_function(module), side))
        if LAYOUT_MODE in entry
    }
