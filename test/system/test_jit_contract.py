"""``autoshard.jit`` keeps the habits of ``jax.jit``."""

from __future__ import annotations

import threading
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import autoshard

layout = autoshard.Layout((2, 4), ("dp", "tp"))
columns = autoshard.shard(jnp.matmul, in_strategy=(layout("dp", "None"), layout("None", "tp")))
rows = autoshard.shard(jnp.matmul, in_strategy=(layout("dp", "tp"), layout("tp", "None")))
MESH = "dp=2,tp=4"

X = jnp.arange(16.0 * 8).reshape(16, 8) % 7 - 3
"""Integers, so that no sum is rounded and results must be equal bit for bit."""

WEIGHTS = {
    "up": jnp.arange(8.0 * 32).reshape(8, 32) % 5 - 2,
    "down": jnp.arange(32.0 * 8).reshape(32, 8) % 3 - 1,
}


def mlp(weights, x):
    return rows(jnp.maximum(columns(x, weights["up"]), 0), weights["down"])


def plain_mlp(weights, x):
    return jnp.maximum(x @ weights["up"], 0) @ weights["down"]


def loss(weights, x):
    return (mlp(weights, x) ** 2).mean()


def step(weights, x, rate=2.0**-12):
    value, gradient = jax.value_and_grad(loss)(weights, x)
    return jax.tree.map(lambda w, g: w - rate * g, weights, gradient), value


def copies(tree):
    return jax.tree.map(jnp.array, tree)


@pytest.fixture(params=[True, False], ids=["shardy", "gspmd"], autouse=True)
def partitioner(request):
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", request.param)
    yield request.param
    jax.config.update("jax_use_shardy_partitioner", before)


@pytest.fixture
def count_traces():
    counted = []

    def counting(fn):
        def counted_fn(*args, **kwargs):
            counted.append(1)
            return fn(*args, **kwargs)

        return counted_fn, counted

    return counting


# --- results ---


def test_integers_come_out_bit_for_bit():
    found = autoshard.jit(mlp, mesh=MESH)(WEIGHTS, X)
    np.testing.assert_array_equal(found, plain_mlp(WEIGHTS, X))
    assert found.sharding.num_devices == 8


def test_mesh_comes_from_the_layouts():
    jitted = autoshard.jit(mlp)
    np.testing.assert_array_equal(jitted(WEIGHTS, X), plain_mlp(WEIGHTS, X))
    assert str(jitted.plan(WEIGHTS, X).mesh) == MESH


@pytest.mark.parametrize(
    "mesh",
    [
        {"dp": 2, "tp": 4},
        autoshard.Mesh.parse(MESH),
        lambda: jax.make_mesh((2, 4), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2),
    ],
    ids=["dict", "Mesh", "jax"],
)
def test_a_mesh_in_any_form(mesh):
    mesh = mesh() if callable(mesh) else mesh
    np.testing.assert_array_equal(autoshard.jit(mlp, mesh=mesh)(WEIGHTS, X), plain_mlp(WEIGHTS, X))


def test_devices_of_a_jax_mesh_are_used_in_its_order():
    devices = np.array(jax.devices()[::-1]).reshape(2, 4)
    mesh = jax.sharding.Mesh(devices, ("dp", "tp"))
    jitted = autoshard.jit(mlp, mesh=mesh)
    found = jitted(WEIGHTS, X)
    np.testing.assert_array_equal(found, plain_mlp(WEIGHTS, X))
    assert jitted.plan(WEIGHTS, X).in_shardings[1].mesh.devices.flat[0] == jax.devices()[-1]


def test_device_order_of_a_layout():
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    other = autoshard.Layout((2, 4), ("dp", "tp"), order)
    product = autoshard.shard(jnp.matmul, (other("dp", "None"), other("None", "tp")))
    jitted = autoshard.jit(lambda x, w: product(x, w))
    w = WEIGHTS["up"]
    np.testing.assert_array_equal(jitted(X, w), X @ w)
    np.testing.assert_array_equal(jitted(X, w), X @ w)
    planned = jitted.plan(X, w).in_shardings[1]
    assert planned.devices_indices_map((8, 32))[jax.devices()[2]][1] == slice(8, 16)


def test_training_step_equals_the_one_on_one_device():
    jitted = autoshard.jit(step, mesh=MESH)
    ours, theirs = copies(WEIGHTS), copies(WEIGHTS)
    for _ in range(3):
        ours, our_loss = jitted(ours, X)
        theirs, their_loss = jax.jit(step)(theirs, X)
        np.testing.assert_allclose(our_loss, their_loss, rtol=1e-5)
    for name in WEIGHTS:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5)


# --- arguments ---


class Batch(NamedTuple):
    x: jax.Array
    scale: float


def test_pytrees_in_and_out():
    def fn(weights, batch):
        return {"y": mlp(weights, batch.x) * batch.scale, "batch": batch, "none": None}

    found = autoshard.jit(fn, mesh=MESH)(WEIGHTS, Batch(X, 2.0))
    assert isinstance(found["batch"], Batch)
    assert found["none"] is None
    np.testing.assert_array_equal(found["y"], 2 * plain_mlp(WEIGHTS, X))


def test_arguments_by_name():
    jitted = autoshard.jit(step, mesh=MESH)
    by_name, _ = jitted(WEIGHTS, x=X, rate=0.5)
    by_place, _ = jitted(WEIGHTS, X, 0.5)
    np.testing.assert_array_equal(by_name["up"], by_place["up"])


def test_static_arguments_by_number_and_name(count_traces):
    def fn(weights, x, times, activation="none"):
        y = mlp(weights, x) * times
        return jnp.tanh(y) if activation == "tanh" else y

    counted_fn, counted = count_traces(fn)
    jitted = autoshard.jit(counted_fn, mesh=MESH, static_argnums=2, static_argnames="activation")
    expected = plain_mlp(WEIGHTS, X)
    np.testing.assert_array_equal(jitted(WEIGHTS, X, 2), 2 * expected)
    np.testing.assert_array_equal(jitted(WEIGHTS, X, 2), 2 * expected)
    assert len(counted) == 1
    np.testing.assert_array_equal(jitted(WEIGHTS, X, 3), 3 * expected)
    assert len(counted) == 2
    found = jitted(WEIGHTS, X, 3, activation="tanh")
    np.testing.assert_allclose(found, np.tanh(3 * expected), rtol=1e-6)
    assert len(counted) == 3


def test_static_argument_named_by_number_of_the_signature():
    def fn(weights, x, times):
        return mlp(weights, x) * len(range(times))

    jitted = autoshard.jit(fn, mesh=MESH, static_argnums=2)
    np.testing.assert_array_equal(jitted(WEIGHTS, X, times=2), 2 * plain_mlp(WEIGHTS, X))


def test_python_and_numpy_numbers():
    jitted = autoshard.jit(lambda w, x, s: mlp(w, x) * s, mesh=MESH)
    expected = 2 * plain_mlp(WEIGHTS, X)
    for scale in (2, 2.0, np.float32(2), jnp.float32(2)):
        np.testing.assert_array_equal(jitted(WEIGHTS, X, scale), expected)


def test_numpy_arrays():
    found = autoshard.jit(mlp, mesh=MESH)(jax.tree.map(np.asarray, WEIGHTS), np.asarray(X))
    np.testing.assert_array_equal(found, plain_mlp(WEIGHTS, X))


def test_committed_arguments_are_placed():
    jitted = autoshard.jit(mlp, mesh=MESH)
    on_one = jax.device_put(WEIGHTS, jax.devices()[3])
    mesh = jax.make_mesh((8,), ("all",), axis_types=(jax.sharding.AxisType.Auto,))
    over_all = jax.device_put(
        X, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "all"))
    )
    np.testing.assert_array_equal(jitted(on_one, over_all), plain_mlp(WEIGHTS, X))


def test_results_can_be_given_back_without_a_copy():
    jitted = autoshard.jit(
        lambda w: w + 1,
        mesh=MESH,
        in_shardings=layout("dp", "tp"),
        out_shardings=layout("dp", "tp"),
    )
    once = jitted(X)
    twice = jitted(once)
    np.testing.assert_array_equal(twice, X + 2)
    assert once.sharding == twice.sharding


def test_unused_arguments():
    jitted = autoshard.jit(lambda w, x, unused: mlp(w, x), mesh=MESH)
    np.testing.assert_array_equal(jitted(WEIGHTS, X, X), plain_mlp(WEIGHTS, X))
    plan = jitted.plan(WEIGHTS, X, X)
    assert not plan.arguments[-1].is_used
    kept = autoshard.jit(lambda w, x, unused: mlp(w, x), mesh=MESH, keep_unused=True)
    np.testing.assert_array_equal(kept(WEIGHTS, X, X), plain_mlp(WEIGHTS, X))


def test_closed_over_arrays():
    scale = jnp.arange(8.0)
    found = autoshard.jit(lambda x: mlp(WEIGHTS, x) * scale, mesh=MESH)(X)
    np.testing.assert_array_equal(found, plain_mlp(WEIGHTS, X) * scale)


def test_typed_prng_keys():
    def fn(weights, x, key, keys):
        noise = jax.random.randint(key, x.shape, 0, 4) + jax.random.bits(keys[1], ()) % 3
        return mlp(weights, x + noise), jax.random.split(key, 8)

    key = jax.random.key(7)
    keys = jax.random.split(key, 8)
    found, split = autoshard.jit(fn, mesh=MESH)(WEIGHTS, X, key, keys)
    expected, expected_split = jax.jit(fn)(WEIGHTS, X, key, keys)
    np.testing.assert_array_equal(found, expected)
    assert split.dtype == key.dtype
    assert (jax.random.key_data(split) == jax.random.key_data(expected_split)).all()


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_typed_prng_keys_as_state(impl):
    """A step returns the next key, and propagation must not cut the words of one."""

    def fn(x, key, keys):
        key, use = jax.random.split(key)
        noise = jax.random.randint(use, x.shape, 0, 4)
        return mlp(WEIGHTS, x + noise), key, jax.random.split(use, 8), keys

    key = jax.random.key(7, impl=impl)
    arguments = X, key, jax.random.split(key, 8)
    found = autoshard.jit(fn, mesh=MESH)(*arguments)
    expected = jax.jit(fn)(*arguments)
    np.testing.assert_array_equal(found[0], expected[0])
    for mine, theirs in zip(found[1:], expected[1:], strict=True):
        assert (jax.random.key_data(mine) == jax.random.key_data(theirs)).all()


@pytest.mark.parametrize("mesh", ["a=1", "a=1,b=1"])
def test_a_mesh_of_one_device(mesh):
    layout = autoshard.Layout((1,), ("a",))
    dot = autoshard.shard(jnp.matmul, in_strategy=(layout("a", "None"), layout("None", "a")))
    found = autoshard.jit(lambda w, x: dot(x, w) + 1, mesh=mesh)(WEIGHTS["up"], X)
    np.testing.assert_array_equal(found, X @ WEIGHTS["up"] + 1)


@pytest.mark.parametrize("reduce", [jnp.sum, jnp.mean, jnp.max])
def test_a_sum_over_two_cut_dims_is_as_planned(reduce):
    """XLA sums over one axis after the other; that is no difference to warn about."""
    found = autoshard.jit(lambda x: reduce(columns(x, WEIGHTS["up"])), mesh=MESH)(X)
    np.testing.assert_array_equal(found, reduce(X @ WEIGHTS["up"]))


def test_approximate_top_k():
    """Its comparator is a public function of its own beside main."""
    fn = lambda x: jax.lax.approx_max_k(columns(x, WEIGHTS["up"]), 3)[0]  # noqa: E731
    np.testing.assert_array_equal(autoshard.jit(fn, mesh=MESH)(X), jax.jit(fn)(X))


def test_with_jit_disabled_it_is_the_function():
    with jax.disable_jit():
        found = autoshard.jit(mlp, mesh=MESH)(WEIGHTS, X)
    np.testing.assert_array_equal(found, plain_mlp(WEIGHTS, X))


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_dtypes_of_less_than_a_byte(dtype):
    x, w = (jnp.ones(shape, dtype) for shape in ((8, 16), (16, 16)))
    fn = lambda x, w: columns(x, w).astype(jnp.int32)  # noqa: E731
    jitted = autoshard.jit(fn, mesh=MESH)
    np.testing.assert_array_equal(jitted(x, w), jax.jit(fn)(x, w))


def test_donated_arguments_are_given_away_and_share_the_sharding_of_their_result():
    jitted = autoshard.jit(step, mesh=MESH, donate_argnums=0)
    weights, _ = jitted(copies(WEIGHTS), X)
    plan = jitted.plan(WEIGHTS, X)
    assert plan.in_shardings[0] == plan.out_shardings[0]
    again, _ = jitted(weights, X)
    assert weights["up"].is_deleted()
    assert not again["up"].is_deleted()


def test_donation_by_name():
    jitted = autoshard.jit(step, mesh=MESH, donate_argnames="weights")
    weights, _ = jitted(copies(WEIGHTS), X)
    jitted(weights, X)
    assert weights["down"].is_deleted()


def test_what_is_no_array_is_refused_as_by_jax():
    with pytest.raises(TypeError, match="non-array argument"):
        autoshard.jit(mlp, mesh=MESH)(WEIGHTS, "text")


def test_unhashable_static_argument_is_refused():
    jitted = autoshard.jit(lambda x, n: x, mesh=MESH, static_argnums=1)
    with pytest.raises((TypeError, ValueError), match=r"unhashable|[Nn]on-hashable"):
        jitted(X, [1])


# --- effects ---


def test_debug_print_and_pure_callback(capfd):
    def fn(weights, x):
        y = mlp(weights, x)
        jax.debug.print("largest {}", y.max())
        return jax.pure_callback(
            lambda v: np.asarray(v) + 1, jax.ShapeDtypeStruct(y.shape, y.dtype), y
        )

    found = autoshard.jit(fn, mesh=MESH)(WEIGHTS, X)
    np.testing.assert_array_equal(found, plain_mlp(WEIGHTS, X) + 1)
    jax.effects_barrier()
    printed = capfd.readouterr().out
    assert printed.count(f"largest {float(plain_mlp(WEIGHTS, X).max())}") == 1


def test_effects_in_an_order_are_refused():
    def fn(x):
        y = io_callback(np.sum, jax.ShapeDtypeStruct((), np.float32), x, ordered=True)
        return x + y

    with pytest.raises(autoshard.PlanError, match=r"OrderedIO.*one device only.*ordered=False"):
        autoshard.jit(fn, cluster="cpu:8")(X)


def test_a_callback_without_all_to_all():
    def fn(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(X.shape, X.dtype), 2 * x) + 1

    found = autoshard.jit(fn, cluster="cpu:8", enable_alltoall=False)(X)
    np.testing.assert_allclose(found, np.sin(2 * X) + 1, rtol=1e-6)


def unmarked_step(weights, x):
    value, gradient = jax.value_and_grad(lambda w: (plain_mlp(w, x) ** 2).mean())(weights)
    return jax.tree.map(lambda w, g: w - 2.0**-12 * g, weights, gradient), value


def test_static_arguments_of_different_types_have_programs_of_their_own():
    jitted = autoshard.jit(lambda x, n: x // n, cluster="cpu:8", static_argnums=1)
    numbers = jnp.arange(16)
    assert jitted(numbers, 2).dtype == jnp.int32
    assert jitted(numbers, 2.0).dtype == jnp.float32


@pytest.mark.parametrize("where", [{"mesh": "data=1"}, {"cluster": "cpu:1"}])
def test_data_parallelism_over_one_device(where):
    jitted = autoshard.jit(unmarked_step, mode="data_parallel", **where)
    weights, value = jitted(WEIGHTS, X)
    expected, loss_value = jax.jit(unmarked_step)(WEIGHTS, X)
    jax.tree.map(np.testing.assert_array_equal, (weights, value), (expected, loss_value))


def test_a_pinned_result_of_data_parallelism():
    plan = autoshard.plan(
        lambda x, w: jnp.tanh(x @ w),
        X,
        WEIGHTS["up"],
        mesh="data=8",
        mode="data_parallel",
        batch_argnums=0,
        out_shardings=jax.sharding.PartitionSpec(),
    )
    assert str(plan.results[0].sharding) == "[{}, {}]"


@pytest.mark.filterwarnings("ignore::autoshard.PlanMismatchWarning")  # XLA sends whole parts
def test_a_padded_batch_may_be_returned():
    x = jnp.arange(250.0 * 8).reshape(250, 8) % 7 - 3
    jitted = autoshard.jit(
        lambda x: 2 * x,
        mesh="data=8",
        mode="data_parallel",
        batch_argnums=0,
        indivisible="pad",
    )
    np.testing.assert_array_equal(jitted(x), 2 * x)


def test_what_xla_makes_otherwise_is_a_warning_an_error_or_nothing():
    x = jnp.ones((250, 8))
    pads = {"mesh": "data=8", "mode": "data_parallel", "batch_argnums": 0, "indivisible": "pad"}
    with pytest.warns(autoshard.PlanMismatchWarning, match=r"contract\.py:\d+: .*check='off'"):
        autoshard.jit(lambda x: 2 * x, **pads)(x)
    with pytest.raises(autoshard.CheckError, match=r"contract\.py:\d+: .*planned.*check='warn'"):
        autoshard.jit(lambda x: 2 * x, **pads, check="error")(x)
    autoshard.jit(lambda x: 2 * x, **pads, check="off")(x)
    with pytest.raises(autoshard.PlanError, match="check='on' is not known"):
        autoshard.jit(lambda x: x, check="on")


def test_donated_state_is_no_batch():
    def averaged(weights, mean, x):
        new, value = unmarked_step(weights, x)
        return new, 0.5 * mean + 0.5 * new["up"], value

    plan = autoshard.plan(
        averaged,
        WEIGHTS,
        WEIGHTS["up"],
        X,
        mesh="data=8",
        mode="data_parallel",
        donate_argnums=(0, 1),
    )
    found = {value.name: str(value.sharding) for value in plan.arguments}
    assert found["mean"] == "[{}, {}]"
    assert found["x"] == "[{data}, {}]"


def test_a_number_and_a_key_beside_the_batch():
    def noisy(batch):
        return batch["rate"] * batch["x"] + jax.random.normal(batch["key"], (16, 8))

    batch = {"x": X, "key": jax.random.key(0), "rate": 2.0}
    jitted = autoshard.jit(noisy, mesh="data=8", mode="data_parallel", batch_argnums=0)
    np.testing.assert_allclose(jitted(batch), jax.jit(noisy)(batch), rtol=1e-5)
    found = {value.name: str(value.sharding) for value in jitted.plan(batch).arguments}
    assert found["batch['x']"] == "[{data}, {}]"


def test_a_key_without_a_mesh():
    jitted = autoshard.jit(lambda key: jax.random.normal(key, (16,)), cluster="cpu:8")
    key = jax.random.key(0)
    np.testing.assert_array_equal(jitted(key), jax.random.normal(key, (16,)))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jnp.pad(x, ((1, 2), (3, 4))),
        lambda x: jnp.concatenate([x, x[:3]]),
        lambda x: (x[:3] * 2, jnp.roll(x, 3, 0)),
    ],
    ids=["padded", "joined", "part"],
)
def test_parts_of_a_batch_need_not_divide(fn):
    jitted = autoshard.jit(fn, mesh="data=8", mode="data_parallel", batch_argnums=0)
    found, expected = jitted(X), fn(X)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    (argument,) = jitted.plan(X).arguments
    assert str(argument.sharding) == "[{data}, {}]"


# --- cache ---


def test_two_calls_trace_and_compile_once(count_traces):
    counted_fn, counted = count_traces(mlp)
    jitted = autoshard.jit(counted_fn, mesh=MESH)
    jitted(WEIGHTS, X)
    programs = list(jitted._programs.values())
    jitted(copies(WEIGHTS), X + 1)
    jitted(jax.tree.map(np.asarray, WEIGHTS), X)
    jitted.plan(WEIGHTS, jax.ShapeDtypeStruct(X.shape, X.dtype))
    assert len(counted) == 1
    assert list(jitted._programs.values()) == programs


def test_new_types_structures_and_settings_are_new_programs(count_traces):
    counted_fn, counted = count_traces(lambda tree: {k: rows_or(v) for k, v in tree.items()})
    jitted = autoshard.jit(counted_fn, mesh=MESH, in_shardings=layout("dp", "None"))
    for tree in ({"a": X}, {"a": X[:8]}, {"a": X, "b": X}, {"a": X.astype(jnp.bfloat16)}):
        jitted(tree)
    assert len(counted) == 4
    with jax.default_matmul_precision("highest"):
        jitted({"a": X})
    assert len(counted) == 5
    jitted({"a": X})
    assert len(counted) == 5


def rows_or(value):
    return value @ value.T


def test_weak_types_are_types(count_traces):
    counted_fn, counted = count_traces(lambda w, x, s: mlp(w, x) * s)
    jitted = autoshard.jit(counted_fn, mesh=MESH)
    jitted(WEIGHTS, X, 2.0)
    jitted(WEIGHTS, X, 3.0)
    assert len(counted) == 1
    jitted(WEIGHTS, X, jnp.float32(2))
    assert len(counted) == 2


def test_clear_cache(count_traces):
    counted_fn, counted = count_traces(mlp)
    jitted = autoshard.jit(counted_fn, mesh=MESH)
    jitted(WEIGHTS, X)
    jitted.clear_cache()
    jitted(WEIGHTS, X)
    assert len(counted) == 2


def test_threads_share_one_program(count_traces):
    counted_fn, counted = count_traces(mlp)
    jitted = autoshard.jit(counted_fn, mesh=MESH)
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(np.asarray(jitted(WEIGHTS, X))))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counted) == 1
    for result in results:
        np.testing.assert_array_equal(result, plain_mlp(WEIGHTS, X))


# --- the user's own jit ---


@pytest.mark.parametrize("ours_first", [True, False])
def test_jax_jit_of_the_same_function_is_untouched(ours_first):
    theirs, ours = jax.jit(mlp), autoshard.jit(mlp, mesh=MESH)
    for _ in range(2):
        if ours_first:
            ours(WEIGHTS, X)
        text = theirs.lower(WEIGHTS, X).as_text()
        assert "autoshard" not in text
        assert "sharding" not in text
        found = theirs(WEIGHTS, X)
        np.testing.assert_array_equal(found, plain_mlp(WEIGHTS, X))
        assert found.sharding.num_devices == 1
        ours(WEIGHTS, X)


def test_a_jitted_function_can_be_planned_and_stays_itself():
    inner = jax.jit(mlp)
    np.testing.assert_array_equal(inner(WEIGHTS, X), plain_mlp(WEIGHTS, X))
    found = autoshard.jit(inner, mesh=MESH)(WEIGHTS, X)
    np.testing.assert_array_equal(found, plain_mlp(WEIGHTS, X))
    assert found.sharding.num_devices == 8
    assert inner(WEIGHTS, X).sharding.num_devices == 1


# --- inside other transformations ---


def test_inside_another_autoshard_jit_it_is_the_function():
    inner = autoshard.jit(mlp, mesh=MESH)
    outer = autoshard.jit(lambda w, x: inner(w, x) + 1, mesh=MESH)
    np.testing.assert_array_equal(outer(WEIGHTS, X), plain_mlp(WEIGHTS, X) + 1)
    assert not inner._programs


def test_differentiated_inside_another_autoshard_jit():
    inner = autoshard.jit(loss, mesh=MESH)
    outer = autoshard.jit(jax.grad(inner), mesh=MESH)
    np.testing.assert_allclose(outer(WEIGHTS, X)["up"], jax.grad(loss)(WEIGHTS, X)["up"], rtol=1e-5)


def test_grad_and_vmap_from_outside_work_and_warn():
    jitted = autoshard.jit(loss, mesh=MESH)
    with pytest.warns(autoshard.AutoshardWarning, match=r"test_jit_contract.*runs unplanned"):
        gradient = jax.grad(jitted)(WEIGHTS, X)
    np.testing.assert_allclose(gradient["up"], jax.grad(loss)(WEIGHTS, X)["up"], rtol=1e-5)
    with pytest.warns(autoshard.AutoshardWarning, match="runs unplanned"):
        jax.vmap(jitted, (None, 0))(WEIGHTS, X[None])


def test_method_and_decorator():
    class Model:
        scale = 2

        @autoshard.jit(mesh=MESH, static_argnums=0)
        def apply(self, weights, x):
            """Doc."""
            return mlp(weights, x) * self.scale

    assert Model.apply.__doc__ == "Doc."
    np.testing.assert_array_equal(Model().apply(WEIGHTS, X), 2 * plain_mlp(WEIGHTS, X))


# --- stages ---


def test_lower_compile_and_run():
    lowered = autoshard.jit(mlp, mesh=MESH).lower(WEIGHTS, X)
    assert "all-reduce" in lowered.compile().as_text()
    compiled = lowered.compile()
    np.testing.assert_array_equal(compiled(WEIGHTS, X), plain_mlp(WEIGHTS, X))


def test_eval_shape():
    shape = autoshard.jit(mlp, mesh=MESH).eval_shape(WEIGHTS, X)
    assert shape.shape == (16, 8)


# --- what cannot be ---


def test_too_few_devices():
    wide = autoshard.Layout((4, 4), ("dp", "tp"))
    fn = autoshard.shard(jnp.matmul, (wide("dp", "None"), wide("None", "tp")))
    with pytest.raises(autoshard.ShardingError, match="needs 16 devices, but there are 8"):
        autoshard.jit(fn)(X, WEIGHTS["up"])


def test_nothing_marked():
    with pytest.raises(autoshard.AutoshardError, match=r"semi_auto|pin|auto"):
        autoshard.jit(plain_mlp, mesh=MESH)(WEIGHTS, X)


def test_no_mesh_anywhere():
    fn = autoshard.shard(jnp.matmul, ((2, 1), (1, 4)))
    with pytest.raises(autoshard.PlanError, match="no mesh is given"):
        autoshard.jit(fn)(X, WEIGHTS["up"])


def test_unknown_mode():
    with pytest.raises(autoshard.PlanError, match="mode 'magic' is not known"):
        autoshard.jit(mlp, mesh=MESH, mode="magic")(WEIGHTS, X)


# --- invalid values ---


def test_debug_nans_names_the_op():
    def invalid(x):
        return jnp.log(x) * 2

    with jax.debug_nans(True):
        assert autoshard.jit(invalid, cluster="cpu:8")(X + 8).shape == X.shape
        with pytest.raises(FloatingPointError, match=r"\(nan\) encountered in log"):
            autoshard.jit(invalid, cluster="cpu:8")(-X - 8)
        given = autoshard.jit(invalid, cluster="cpu:8", donate_argnums=0)
        placed = given.plan(X).place(-X - 8)
        with pytest.raises(FloatingPointError, match=r"\(nan\) encountered in log"):
            given(*placed)
