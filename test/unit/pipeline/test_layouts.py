"""What only tasks of one stage see lies in memory as the compiler of the first of them likes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.cluster import Cluster
from autoshard.errors import CompileError
from autoshard.ir.attributes import ANY_ORDER, LAYOUT_MODE
from autoshard.ir.boundary import Side, entries_at, main_function
from autoshard.pipeline.layouts import Layouts, inside_of_stages
from autoshard.pipeline.modules import copy_of

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


def test_neither_what_is_sent_nor_what_the_caller_has_is_inside(staged: Any) -> None:
    program = staged.program
    outside = {one.operand for one in program.transfers} | {*program.arguments, *program.results}
    kept = dict[int, set[int]]()
    for call in program.all_calls:
        inside = staged.inside[call.task.name]
        for places, values in ((inside.operands, call.operands), (inside.results, call.results)):
            for place, value in places.items():
                assert values[place] not in outside
                kept.setdefault(value, set()).add(call.task.stage)
    assert kept, "the first stage keeps what its backward pass reads"
    assert all(len(stages) == 1 for stages in kept.values())


def test_a_sum_lies_in_one_layout_from_its_start_to_its_end(staged: Any) -> None:
    program = staged.program
    sums = [one for one in program.sums if staged.values[one.start].shape]
    assert sums
    for one in sums:
        found = {
            places[at]
            for call in program.all_calls
            for places, values in (
                (staged.inside[call.task.name].operands, call.operands),
                (staged.inside[call.task.name].results, call.results),
            )
            for at, value in enumerate(values)
            if value in (one.start, one.argument, one.update, one.result)
        }
        assert found == {one.start}


def test_a_compiler_that_lays_out_all_results_alike_is_not_asked(staged: Any) -> None:
    compiler = TPU.with_compiler(f"{TPU.compiler}:without=layout.chosen_results").compiler
    assert inside_of_stages(staged.program, compiler) == {}
    assert inside_of_stages(staged.program, Cluster.of("cpu:4").compiler) == {}
    names = [task.name for task in staged.program.tasks]
    (at_once,) = Layouts(staged.program, {}).in_turn(names)
    assert sorted(at_once) == sorted(names)


def chosen(layouts: Layouts, staged: Any, name: str, sums: str = "{0,1}") -> None:
    """Compile a task: what it takes lies row by row, what it gives otherwise."""
    taken, given = _said(layouts, staged, name)
    count = max(*taken, *given, -1) + 1
    operands = [taken.get(at, "") for at in range(count)]
    results = [given.get(at, "") for at in range(count)]
    operands = ["{1,0}" if text == ANY_ORDER else text for text in operands]
    layouts.keep(name, operands, [sums if text == ANY_ORDER else text for text in results])


def test_the_loop_comes_first_and_others_take_and_give_what_it_chose(staged: Any) -> None:
    layouts, seen = Layouts(staged.program, staged.inside), list[str]()
    names = [task.name for task in staged.program.tasks]
    loop = {call.task.name for call in staged.program.calls}
    for ready in layouts.in_turn(names):
        for name in ready:
            seen.append(name)
            taken, given = _said(layouts, staged, name)
            if name not in loop:
                assert loop <= set(seen)
                inside = staged.inside[name]
                shared = {
                    value for each in loop for value in staged.inside[each].values
                } & inside.values
                for side, said in ((inside.operands, taken), (inside.results, given)):
                    assert all(
                        said[at] != ANY_ORDER for at, value in side.items() if value in shared
                    )
            chosen(layouts, staged, name)
    again = {name for name in seen if seen.count(name) == 2}
    assert again == {
        name
        for name in loop
        if set(staged.inside[name].operands.values()) & set(staged.inside[name].results.values())
    }, "a sum was taken row by row and given otherwise"
    assert max(map(seen.count, seen)) == 2


def test_layouts_that_a_compiler_does_not_take_are_an_error(staged: Any) -> None:
    layouts = Layouts(staged.program, staged.inside)
    name = next(iter(staged.program.calls)).task.name
    count = len(staged.program.calls[0].results)
    given = ["{0,1}"] * count
    layouts.keep(name, ["{0,1}"] * len(staged.program.calls[0].operands), given)
    told = _said(layouts, staged, name)[1]
    assert told
    assert set(told.values()) == {"{0,1}"}
    other = ["{1,0}"] * count
    layouts.keep(name, ["{0,1}"] * len(staged.program.calls[0].operands), other)
    with pytest.raises(CompileError, match=r"as \{1,0\}, it was told \{0,1\}"):
        layouts.keep(name, ["{0,1}"] * len(staged.program.calls[0].operands), other)


def _said(layouts: Layouts, staged: Any, name: str) -> tuple[dict[int, str], dict[int, str]]:
    """What stands at arguments and results of the module of a task."""
    module = copy_of(staged.modules[name])
    layouts.lay_out(module, name)
    sides: tuple[Side, Side] = ("arg_attrs", "res_attrs")
    taken, given = (
        {
            place: str(entry[LAYOUT_MODE]).strip('"')
            for place, entry in enumerate(entries_at(main_function(module), side))
            if LAYOUT_MODE in entry
        }
        for side in sides
    )
    return taken, given
