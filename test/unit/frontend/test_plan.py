"""``autoshard.plan``: what it reads from a planned module, what it writes, what it refuses."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard

PartitionSpec = jax.sharding.PartitionSpec
layout = autoshard.Layout((2, 4), ("dp", "tp"))
columns = autoshard.shard(jnp.matmul, in_strategy=(layout("dp", "None"), layout("None", "tp")))
rows = autoshard.shard(jnp.matmul, in_strategy=(layout("dp", "tp"), layout("tp", "None")))
MESH = "dp=2,tp=4"


def mlp(weights, x):
    h = jnp.tanh(columns(x, weights["up"]))
    return {"y": rows(h, weights["down"])}


def type_of(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


WEIGHTS = {"up": type_of(8, 32), "down": type_of(32, 8)}
X = type_of(16, 8)


def shardings(values):
    return {value.name: str(value.sharding) for value in values}


# --- what a plan says ---


def test_arguments_and_results_have_names_types_and_shardings():
    plan = autoshard.plan(mlp, WEIGHTS, X, mesh=MESH)
    assert shardings(plan.arguments) == {
        "weights['down']": "[{tp}, {}]",
        "weights['up']": "[{}, {tp}]",
        "x": "[{dp}, {}]",
    }
    assert [value.name for value in plan.results] == ["result['y']"]
    assert plan.arguments[0].shape == (32, 8)
    assert plan.arguments[0].dtype == "float32"
    assert plan.arguments[0].local_shape == (8, 8)
    assert str(plan.mesh) == MESH


def test_shardings_are_pytrees_for_plain_jax():
    plan = autoshard.plan(mlp, WEIGHTS, x=X, mesh=MESH)
    assert plan.in_shardings[0]["up"].spec == PartitionSpec(None, "tp")
    assert plan.kwarg_shardings["x"].spec == PartitionSpec("dp", None)
    assert isinstance(plan.out_shardings["y"], jax.sharding.NamedSharding)
    by_place = autoshard.plan(mlp, WEIGHTS, X, mesh=MESH)
    jitted = jax.jit(mlp, in_shardings=by_place.in_shardings, out_shardings=by_place.out_shardings)
    arrays = jax.tree.map(lambda t: jnp.ones(t.shape), (WEIGHTS, X))
    np.testing.assert_allclose(jitted(*arrays)["y"], jax.jit(mlp)(*arrays)["y"], rtol=1e-6)
    placed = jax.device_put(arrays[0], by_place.in_shardings[0])
    assert placed["up"].addressable_shards[0].data.shape == (8, 8)


def test_ops_have_the_line_the_strategy_and_the_sharding():
    plan = autoshard.plan(mlp, WEIGHTS, X, mesh=MESH)
    first, second = (op for op in plan.ops if op.name == "dot_general")
    line = inspect.getsourcelines(mlp)[1] + 1
    assert first.location.startswith(f"{__file__}:{line}:")
    assert first.strategy == "[{dp}, {}], [{}, {tp}] -> [{dp}, {tp}]"
    assert str(first.shardings[0]) == "[{dp}, {tp}]"
    assert first.is_pinned
    assert first.types == ("tensor<16x32xf32>",)
    assert second.strategy.startswith("[{dp}, {tp}], [{tp}, {}] -> ")


def test_reshards_name_reader_line_and_both_shardings():
    wide = autoshard.shard(jnp.tanh, (layout("None", "tp"),))
    plan = autoshard.plan(
        lambda x, w: wide(columns(x, w)),
        X,
        WEIGHTS["up"],
        mesh=MESH,
        out_shardings=layout("None", "tp"),
    )
    assert plan.reshards
    assert {str(one.before) for one in plan.reshards} == {"[{dp}, {tp}]"}
    assert {str(one.after) for one in plan.reshards} == {"[{}, {tp}]"}
    assert all(one.location.startswith(__file__) for one in plan.reshards)


def test_table_shows_arguments_ops_and_lines():
    text = str(autoshard.plan(mlp, WEIGHTS, X, mesh=MESH))
    line = inspect.getsourcelines(mlp)[1] + 1
    for part in (
        "mlp: semi_auto plan on mesh dp=2,tp=4",
        "weights['up']",
        "8×32",
        "[{}, {tp}]",
        f"test_plan.py:{line}",
        "[{dp}, {}], [{}, {tp}] -> [{dp}, {tp}]",
    ):
        assert part in text


def test_module_text_is_planned_and_keeps_lines():
    text = autoshard.plan(mlp, WEIGHTS, X, mesh=MESH).to_mlir()
    assert 'autoshard.mesh = "dp=2,tp=4"' in text
    assert 'autoshard.strategy = "[{dp}, {}], [{}, {tp}] -> [{dp}, {tp}]"' in text
    assert "mhlo.num_partitions = 8" in text
    assert "test_plan.py" in text


def test_a_plan_cannot_be_changed():
    plan = autoshard.plan(mlp, WEIGHTS, X, mesh=MESH)
    with pytest.raises(FrozenInstanceError):
        plan.mesh = None


def test_mesh_of_the_layouts():
    assert str(autoshard.plan(mlp, WEIGHTS, X).mesh) == MESH


def test_mesh_is_refined_where_layouts_need_it():
    flat = autoshard.Layout((8,), ("all",))
    fn = autoshard.shard(lambda x: jnp.tanh(x), (flat("all", "None"),))
    plan = autoshard.plan(lambda w, x: fn(mlp(w, x)["y"]), WEIGHTS, X)
    assert plan.mesh.size == 8


def test_static_donated_and_unused_arguments():
    def fn(weights, x, times, unused):
        assert isinstance(times, int)
        return jax.tree.map(lambda w: w * times, weights), mlp(weights, x)

    plan = autoshard.plan(
        fn, WEIGHTS, X, 3, type_of(5), mesh=MESH, static_argnums=2, donate_argnums=0
    )
    assert shardings(plan.arguments)["unused"] == "[{}]"
    assert not plan.arguments[-1].is_used
    assert len(plan.in_shardings) == 3
    assert plan.in_shardings[0] == plan.out_shardings[0]


def test_state_that_a_step_returns_lies_as_it_came():
    """Otherwise every step would reshard what the last one returned."""

    def step(weights, x):
        grads = jax.grad(lambda w: jnp.sum(mlp(w, x)["y"] ** 2))(weights)
        return jnp.float32(0), jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads)

    plan = autoshard.plan(step, WEIGHTS, X, mesh=MESH)
    assert plan.out_shardings[1] == plan.in_shardings[0]
    # what only looks like an argument is no successor
    single = autoshard.plan(lambda x: columns(x, jnp.ones((8, 8))), X, mesh=MESH)
    assert single.out_shardings.spec == PartitionSpec("dp", "tp")


def test_typed_keys_are_scalars():
    def fn(weights, x, key):
        return mlp(weights, x + jax.random.normal(key, x.shape))

    key = jax.eval_shape(lambda: jax.random.key(0))
    plan = autoshard.plan(fn, WEIGHTS, X, key, mesh=MESH)
    assert plan.in_shardings[2].spec == PartitionSpec()
    assert plan.arguments[-1].shape == ()


@pytest.mark.parametrize(
    ("mesh", "said"), [("dp=4,tp=2", r"dp=4,tp=2"), ("tp=4,dp=2", r"tp=4,dp=2"), ("tp=8", "tp=8")]
)
def test_a_layout_against_the_mesh_under_the_same_names_is_refused(mesh, said):
    with pytest.raises(
        autoshard.ShardingError,
        match=rf"test_plan\.py:\d+.*device matrix dp=2,tp=4, but the mesh is {said}: the same name",
    ):
        autoshard.plan(mlp, WEIGHTS, X, mesh=mesh)


def test_a_layout_of_other_names_than_the_mesh_is_refined():
    plan = autoshard.plan(mlp, WEIGHTS, X, mesh="a=4,b=2")
    assert plan.mesh.size == 8


# --- loops and time ---


def test_trips_that_the_program_does_not_tell_are_said():
    def halved(x):
        return jax.lax.while_loop(lambda c: c.sum() > 1, lambda c: c @ c.T @ c, x)

    seconds = [
        autoshard.plan(halved, X, cluster="cpu:8", trip_count=trips).step_seconds
        for trips in (10, 1000)
    ]
    assert seconds[1] > 50 * seconds[0]
    with pytest.warns(autoshard.AutoshardWarning, match=r"test_plan\.py:\d+.*Give .* trip_count="):
        autoshard.plan(halved, X, cluster="cpu:8")
    with pytest.raises(autoshard.PlanError, match="trip_count=-1 is no number of trips"):
        autoshard.plan(halved, X, cluster="cpu:8", trip_count=-1)


def test_a_time_limit_is_said_to_the_search():
    plan = autoshard.plan(jnp.tanh, X, cluster="cpu:8", time_limit=1e-9)
    assert plan.step_seconds > 0
    with pytest.raises(autoshard.PlanError, match="time_limit=1 is said to the search"):
        autoshard.plan(jnp.tanh, X, mesh="d=8", mode="semi_auto", time_limit=1)


# --- pins ---


@pytest.mark.parametrize(
    "pin",
    [
        PartitionSpec("tp", "dp"),
        layout("tp", "dp"),
        lambda: jax.sharding.NamedSharding(
            jax.make_mesh((2, 4), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2),
            PartitionSpec("tp", "dp"),
        ),
    ],
    ids=["PartitionSpec", "layout", "NamedSharding"],
)
def test_pinned_arguments_and_results(pin):
    pin = pin() if callable(pin) else pin
    plan = autoshard.plan(
        mlp, WEIGHTS, X, mesh=MESH, in_shardings=(None, pin), out_shardings={"y": pin}
    )
    assert shardings(plan.arguments)["x"] == "[{tp}, {dp}]"
    assert shardings(plan.results)["result['y']"] == "[{tp}, {dp}]"
    assert plan.reshards


def test_pins_alone_are_enough_to_plan():
    plan = autoshard.plan(
        lambda x, w: x @ w,
        X,
        WEIGHTS["up"],
        mesh=MESH,
        in_shardings=(PartitionSpec("dp"), PartitionSpec(None, "tp")),
    )
    assert shardings(plan.results) == {"result": "[{dp}, {tp}]"}


def test_one_pin_for_a_pytree():
    plan = autoshard.plan(
        mlp, WEIGHTS, X, mesh=MESH, in_shardings=(PartitionSpec("tp", None), None)
    )
    assert shardings(plan.arguments)["weights['up']"] == "[{tp}, {}]"


def test_wrong_pins():
    with pytest.raises(autoshard.ShardingError, match=r"x: .*\(size 6\) cannot be split"):
        autoshard.plan(lambda x: x + 1, type_of(6), mesh=MESH, in_shardings=PartitionSpec("tp"))
    with pytest.raises(autoshard.ShardingError, match='"pp" is not an axis'):
        autoshard.plan(lambda x: x + 1, X, mesh=MESH, in_shardings=PartitionSpec("pp"))
    with pytest.raises(autoshard.PlanError, match=r"in_shardings .* has not the structure"):
        autoshard.plan(mlp, WEIGHTS, X, mesh=MESH, in_shardings=(None, None, None))
    with pytest.raises(autoshard.PlanError, match="'dp' is no sharding"):
        autoshard.plan(lambda x: x + 1, X, mesh=MESH, in_shardings="dp")


# --- pins ---


@pytest.mark.parametrize("pinned", ["pinned_host", "unpinned_host"])
def test_a_pin_says_nothing_of_memory(pinned):
    mesh = jax.make_mesh((8,), ("d",))
    pin = jax.NamedSharding(mesh, PartitionSpec("d"), memory_kind=pinned)
    with pytest.raises(autoshard.PlanError, match=rf"x: .*'{pinned}'.*autoshard\.in_host_memory"):
        autoshard.plan(jnp.tanh, X, in_shardings=pin)
    autoshard.plan(jnp.tanh, X, in_shardings=pin.with_memory_kind("device"))


def test_cholesky_is_cut_by_matrices_only():
    """XLA gathers whole matrices for a call into LAPACK; a plan that cuts them is not kept."""
    cut = PartitionSpec("dp", "tp", None)
    plan = autoshard.plan(jnp.linalg.cholesky, type_of(8, 8, 8), mesh=MESH, in_shardings=(cut,))
    [strategy] = [op.strategy for op in plan.ops if "spotrf" in op.name]
    assert strategy is not None
    assert re.fullmatch(r"(\[{[^}]*}, {}, {}\]) -> \1, \[{[^}]*}\]", strategy), strategy


def test_typed_prng_keys_are_nothing_to_propagate_from():
    with pytest.raises(autoshard.PlanError, match="nothing to propagate"):
        autoshard.plan(lambda key, x: (key, x + 1), jax.random.key(0), X, mesh=MESH)


# --- devices and caches ---


def test_planning_needs_no_devices(tmp_path):
    program = """
        import jax, jax.numpy as jnp, autoshard
        assert len(jax.devices()) == 1
        layout = autoshard.Layout((16, 4), ("dp", "tp"))
        fn = autoshard.shard(jnp.matmul, (layout("dp", "None"), layout("None", "tp")))
        x = jax.ShapeDtypeStruct((64, 8), jnp.float32)
        w = jax.ShapeDtypeStruct((8, 32), jnp.float32)
        key = jax.eval_shape(lambda: jax.random.key(0))
        def net(x, w, key):
            return fn(x, w) + jax.random.normal(key, (64, 32))
        for mesh in (None, "dp=16,tp=4"):
            plan = autoshard.plan(net, x, w, key, mesh=mesh)
            assert plan.mesh.size == 64
            assert plan.in_shardings[0].spec == jax.sharding.PartitionSpec("dp", None)
            assert "mhlo.num_partitions = 64" in plan.to_mlir()
        try:
            autoshard.jit(net)(jnp.ones(x.shape), jnp.ones(w.shape), jax.random.key(0))
        except autoshard.ShardingError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={
            **os.environ,
            "XLA_FLAGS": "",
            "PYTHONPATH": str(Path(autoshard.__file__).parents[1]),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "needs 64 devices, but there are 1" in done.stdout


def test_planning_leaves_the_users_jit_alone():
    jitted = jax.jit(mlp)
    before = jitted.lower(WEIGHTS, X).as_text()
    autoshard.plan(jitted, WEIGHTS, X, mesh=MESH)
    autoshard.plan(mlp, WEIGHTS, X, mesh=MESH)
    assert jitted.lower(WEIGHTS, X).as_text() == before
    assert jax.jit(mlp).lower(WEIGHTS, X).as_text() == before
    assert "autoshard" not in before


def test_shardings_of_given_arrays_are_no_pins():
    placed = jax.device_put(
        jnp.ones((16, 8)),
        jax.sharding.NamedSharding(jax.make_mesh((8,), ("i",)), PartitionSpec(None, "i")),
    )
    plan = autoshard.plan(mlp, WEIGHTS, placed, mesh=MESH)
    assert shardings(plan.arguments)["x"] == "[{dp}, {}]"


# --- what cannot be ---


def test_contradicting_marks_name_the_line():
    other = autoshard.shard(jnp.tanh, ((1, 3),))
    with pytest.raises(autoshard.AutoshardError, match=r"test_plan\.py:\d+"):
        autoshard.plan(lambda x: other(x), type_of(16, 9), mesh=MESH)


def test_things_that_are_no_mesh():
    with pytest.raises(autoshard.ShardingError, match="mesh is 8"):
        autoshard.plan(mlp, WEIGHTS, X, mesh=8)
    with pytest.raises(autoshard.AutoshardError, match="mesh"):
        autoshard.plan(mlp, WEIGHTS, X, mesh="dp:2")


@pytest.mark.parametrize("form", ["autoshard-export-shardy", "autoshard-export-gspmd"])
def test_each_exported_module_is_its_own(form):
    plan = autoshard.plan(mlp, WEIGHTS, X, mesh=MESH, mode="semi_auto")
    changed = plan.exported(form)
    before = str(changed)
    with changed.context:
        del changed.operation.attributes["mhlo.num_partitions"]
    assert str(changed) != before
    assert str(plan.exported(form)) == before


def test_calls_back_into_python_are_counted_by_the_trips_of_their_loops():
    def step(x):
        def body(x, _):
            return jax.pure_callback(lambda y: y, type_of(16), x), None

        x, _ = jax.lax.scan(body, x, None, length=5)
        return jax.pure_callback(lambda y: y, type_of(16), x)

    plan = autoshard.plan(step, type_of(16), mesh="d=2", mode="data_parallel", batch_argnums=0)
    times = [times for size, times in plan.callback_bytes if size == 64]
    assert times == [5, 5, 1, 1]


class Chain(NamedTuple):
    """State of a sampler."""

    position: Any
    gradient: Any


def _chain(chain: Chain, x: Any) -> Chain:
    gradient = x.T @ (x @ chain.position)
    return Chain(chain.position - gradient, gradient + chain.gradient)


@pytest.mark.parametrize(
    "returned",
    [
        pytest.param(lambda chain, loss: chain, id="all of the result"),
        pytest.param(lambda chain, loss: (chain, loss), id="element of a tuple"),
        pytest.param(lambda chain, loss: {"loss": loss, "state": chain}, id="value of a dict"),
    ],
)
def test_state_is_known_wherever_a_result_has_it(returned: Callable[..., Any]) -> None:
    """Results that are not known as state would be cut, as sums of a batch that is."""

    def step(chain: Chain, x: Any) -> Any:
        chain = _chain(chain, x)
        return returned(chain, chain.position.sum())

    chain = Chain(jnp.ones((64, 8)), jnp.ones((64, 8)))
    plan = autoshard.plan(step, chain, jnp.ones((256, 64)), mesh="d=8", mode="data_parallel")
    found = [value.sharding for value in plan.results if value.shape == (64, 8)]
    assert [(at.num_shards(0), at.num_shards(1)) for at in found] == [(1, 1), (1, 1)]
    assert plan.arguments[-1].sharding.num_shards(0) == 8
