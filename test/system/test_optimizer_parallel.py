"""Levels of optimizer parallelism: equal results, memory as in theory, collectives as planned."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from equivalence import assert_equal, on_one_device, problem, shardy, unsharded
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from models import INTEGERS, MODELS, wrapped

import autoshard
from autoshard.frontend.plan import Plan

Tree = Any

LAYERS, WIDTH, HEAD, BATCH, DEVICES = 3, 32, 16, 64, 8

both_partitioners = pytest.mark.parametrize("use_shardy", [True, False], ids=("shardy", "gspmd"))
every_level = pytest.mark.parametrize("level", [1, 2, 3])
OPTIMIZER = optax.sgd(0.5, momentum=0.5)


def scanned(parameters: Tree, x: Any) -> Any:
    return jax.lax.scan(lambda x, w: (wrapped(x @ w) + x, None), x, parameters["layers"])[0]


def converted(parameters: Tree, x: Any) -> Any:
    """Its backward loop reads the converted weights from a stack."""

    def layer(x: Any, w: Any) -> tuple[Any, None]:
        return wrapped(x @ w.astype(jnp.bfloat16).astype(jnp.float32)) + x, None

    return jax.lax.scan(layer, x, parameters["layers"])[0]


def unrolled(parameters: Tree, x: Any) -> Any:
    for layer in range(LAYERS):
        x = wrapped(x @ parameters["layers"][layer]) + x
    return x


def unstacked(parameters: Tree, x: Any) -> Any:
    for layer in range(LAYERS):
        x = wrapped(x @ parameters[f"layer {layer}"]) + x
    return x


def loss_of(apply: Callable[..., Any], parameters: Tree, x: Any) -> Any:
    outputs = wrapped(apply(parameters, x) @ parameters["head"])
    return jnp.sum(jnp.square(outputs - 1)) / 2


def step_of(differentiate: Callable[..., Any]) -> Callable[..., Any]:
    def step(parameters: Tree, state: Tree, x: Any) -> Tree:
        loss, gradients = differentiate(parameters, x)
        updates, state = OPTIMIZER.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state, loss

    return step


def plain_step(apply: Callable[..., Any]) -> Callable[..., Any]:
    return step_of(jax.value_and_grad(partial(loss_of, apply)))


def arguments(apply: Callable[..., Any], batch: int = BATCH) -> tuple[Tree, Tree, Any]:
    random = np.random.default_rng(3)

    def draw(*shape: int) -> np.ndarray:
        return random.integers(-1, 2, shape).astype(np.float32)

    layers = draw(LAYERS, WIDTH, WIDTH)
    parameters: Tree = {"layers": layers}
    if apply is unstacked:
        parameters = {f"layer {number}": layer for number, layer in enumerate(layers)}
    parameters["head"] = draw(WIDTH, HEAD)
    return parameters, jax.device_get(OPTIMIZER.init(parameters)), draw(batch, WIDTH)


def jitted(
    fn: Callable[..., Any], level: int, *, memory_limit: int | None = None, **options: Any
) -> Any:
    return autoshard.jit(
        fn,
        cluster=f"cpu:{DEVICES}",
        mode="data_parallel",
        memory_limit=memory_limit,
        optimizer_parallel=autoshard.OptimizerParallel(level=level, threshold_kb=0, **options),
        donate_argnums=(0, 1),
    )


def run(fn: Any, args: tuple[Any, ...]) -> Any:
    """Run it; whatever XLA makes otherwise than planned is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", autoshard.PlanMismatchWarning)
        return jax.device_get(fn(*jax.tree.map(jnp.array, args)))


def run_loosely(fn: Any, args: tuple[Any, ...]) -> Any:
    """Run it, whether or not XLA moves as little as planned."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", autoshard.PlanMismatchWarning)
        return jax.device_get(fn(*jax.tree.map(jnp.array, args)))


@pytest.mark.parametrize("apply", [scanned, converted, unstacked])
@every_level
@both_partitioners
def test_levels_equal_the_unsharded_run(
    apply: Callable[..., Any], level: int, use_shardy: bool
) -> None:
    fn, args = plain_step(apply), arguments(apply)
    with shardy(use_shardy):
        found = run(jitted(fn, level), args)
    assert_equal(found, unsharded(fn, args), 0.0)


def test_layers_of_one_array_taken_one_by_one_equal_the_unsharded_run() -> None:
    fn, args = plain_step(unrolled), arguments(unrolled)
    assert_equal(run(jitted(fn, 3), args), unsharded(fn, args), 0.0)


@cache
def planned(apply: Callable[..., Any], level: int) -> Plan:
    if level == 0:
        fn = plain_step(apply)
        return autoshard.plan(
            fn, *arguments(apply), cluster="cpu:8", mode="data_parallel", donate_argnums=(0, 1)
        )
    return jitted(plain_step(apply), level).plan(*arguments(apply))


PARAMETER_BYTES = 4 * (LAYERS * WIDTH * WIDTH + WIDTH * HEAD)
BATCH_BYTES = 4 * BATCH * WIDTH


def argument_bytes(plan: Plan) -> int:
    return sum(4 * prod(value.local_shape) for value in plan.arguments)


@pytest.mark.parametrize("apply", [scanned, unstacked])
def test_arguments_take_what_theory_says(apply: Callable[..., Any]) -> None:
    """Momentum is one copy of the parameters; ``x / 8`` is what one of 8 devices keeps."""
    whole, part = PARAMETER_BYTES, PARAMETER_BYTES // DEVICES
    batch = BATCH_BYTES // DEVICES
    found = [argument_bytes(planned(apply, level)) - batch for level in range(4)]
    assert found == [2 * whole, whole + part, whole + part, 2 * part]
    compiled = jitted(plain_step(apply), 3).lower(*arguments(apply)).compile()
    assert compiled.memory_analysis().argument_size_in_bytes == 2 * part + batch


@pytest.mark.parametrize("apply", [scanned, unstacked])
def test_the_peak_falls(apply: Callable[..., Any]) -> None:
    peaks = [planned(apply, level).peak_bytes for level in range(4)]
    # A result that is cut lends less storage to what is free again before it is made.
    saved = 0.95 * PARAMETER_BYTES * (DEVICES - 1) / DEVICES
    assert peaks[1] <= peaks[0] - saved
    assert peaks[2] <= peaks[0] - saved
    assert peaks[3] < min(peaks[1], peaks[2])


@pytest.mark.parametrize("apply", [scanned, unstacked])
def test_collectives_are_those_of_zero(apply: Callable[..., Any]) -> None:
    """Bytes that a device sends: a gather or a scatter 7/8 of what it moves, a reduction twice."""
    moved = PARAMETER_BYTES * (DEVICES - 1) / DEVICES
    loss = 2 * 4 * (DEVICES - 1) / DEVICES
    kinds = [Counter[str]() for _ in range(4)]
    for level in range(4):
        for one in planned(apply, level).summary.collectives:
            kinds[level][one.kind] += one.total_bytes
    # the head is used twice on the spot; a loop gathers layers forward and again backward
    layers = 4 * LAYERS * WIDTH * WIDTH * (DEVICES - 1) / DEVICES
    again = layers if apply is scanned else 0
    assert kinds == [
        {"all-reduce": 2 * moved + loss},
        {"all-reduce": 2 * moved + loss, "all-gather": moved},
        {"reduce-scatter": moved, "all-gather": moved, "all-reduce": loss},
        {"reduce-scatter": moved, "all-gather": moved + again, "all-reduce": loss},
    ]


def test_stacks_of_converted_weights_are_spread_at_level_3() -> None:
    """The backward loop gathers them again, instead of reading whole ones."""
    stack = f"tensor<{LAYERS}x{WIDTH}x{WIDTH}xf32>"
    plan = planned(converted, 3)
    made = [op for op in plan.ops if op.name == "dynamic_update_slice" and op.types == (stack,)]
    assert len(made) == 2, "weights and gradients"
    assert {prod(found.tile) for op in made for found in op.shardings if found} == {DEVICES}
    assert plan.summary is not None
    gathered = sum(one.total_bytes for one in plan.summary.collectives if one.kind == "all-gather")
    layers = 4 * LAYERS * WIDTH * WIDTH
    assert gathered == (PARAMETER_BYTES + layers) * (DEVICES - 1) / DEVICES


@every_level
@both_partitioners
def test_levels_keep_marks(level: int, use_shardy: bool) -> None:
    """Parameters that marks cut by tp are spread over dp, which replicates them."""
    (model,) = (model for model in MODELS if model.name == "mlp")
    expected = on_one_device(model, INTEGERS, "train_step")
    fn, args = problem(model, INTEGERS, "train_step", autoshard.shard)
    spread = autoshard.OptimizerParallel(level=level, threshold_kb=0)
    marked = autoshard.jit(fn, mesh="dp=2,tp=4", mode="semi_auto", optimizer_parallel=spread)
    with shardy(use_shardy):
        assert_equal(jax.device_get(marked(*args)), expected, 0.0)
    parts = {v.name: prod(v.shape) // prod(v.local_shape) for v in marked.plan(*args).arguments}
    for name in ("w1", "b1", "w2"):
        assert parts[f"state[0].trace['{name}']"] == 8
        assert parts[f"parameters['{name}']"] == (8 if level == 3 else 4)


def test_marked_parameters_are_spread_in_a_plan_with_costs() -> None:
    """A mark says how an op reads its operand, not where the argument lies."""
    (model,) = (model for model in MODELS if model.name == "mlp")
    fn, args = problem(model, INTEGERS, "train_step", autoshard.shard)
    spread = autoshard.OptimizerParallel(level=3, threshold_kb=0)
    options: dict[str, Any] = {"mesh": "dp=2,tp=4", "mode": "semi_auto"}
    plan = autoshard.plan(fn, *args, **options, cluster="cpu:8", optimizer_parallel=spread)
    parts = {v.name: prod(v.shape) // prod(v.local_shape) for v in plan.arguments}
    assert parts["parameters['w1']"] == parts["parameters['w2']"] == 8
    assert plan.peak_bytes < autoshard.plan(fn, *args, **options, cluster="cpu:8").peak_bytes


ROWS, COLUMNS = PartitionSpec("dp"), PartitionSpec(None, "dp")


def planned_momentum(**options: Any) -> Plan:
    """A step of one parameter with its momentum, on four devices."""

    def step(w: Any, m: Any, x: Any) -> Any:
        m = 0.5 * m + jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w)
        return w - 0.125 * m, m

    types = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((16, 32), (16, 32), (8, 16))]
    return autoshard.plan(step, *types, mesh="dp=2,tp=2", cluster="cpu:4", **options)


@every_level
@pytest.mark.parametrize("donated", [(), (0, 1)], ids=["copied", "donated"])
@pytest.mark.parametrize(
    ("ins", "outs"),
    [
        ((None, None), (COLUMNS, None)),
        ((None, None), (None, COLUMNS)),
        ((None, COLUMNS), (None, None)),
        ((None, ROWS), (COLUMNS, None)),
        ((ROWS, None), (COLUMNS, None)),
        ((None, ROWS), (None, COLUMNS)),
    ],
)
def test_pins_of_parameters_and_states_are_kept(
    level: int, donated: tuple[int, ...], ins: tuple[Any, ...], outs: tuple[Any, ...]
) -> None:
    """Pins of arguments and results are kept, whether they are one array of the plan or two."""

    plan = planned_momentum(
        mode="semi_auto",
        in_shardings=(*ins, ROWS),
        out_shardings=outs,
        donate_argnums=donated,
        optimizer_parallel=autoshard.OptimizerParallel(level=level, threshold_kb=0),
    )
    for wanted, found in ((ins, plan.in_shardings), (outs, plan.out_shardings)):
        for pin, sharding in zip(wanted, found, strict=False):
            assert pin is None or sharding.is_equivalent_to(NamedSharding(plan.jax_mesh, pin), 2)
    if ins[1] is None and outs[1] is None:
        assert plan.arguments[1].local_shape != plan.arguments[1].shape


@every_level
@pytest.mark.parametrize("donated", [(), (0, 1)], ids=["copied", "donated"])
def test_pinned_results_are_kept_where_the_mode_pins_arguments(
    level: int, donated: tuple[int, ...]
) -> None:
    """A donated argument stays whole, as the mode has it: else it and the result would be one."""
    plan = planned_momentum(
        mode="data_parallel",
        batch_argnums=2,
        out_shardings=(None, COLUMNS),
        donate_argnums=donated,
        optimizer_parallel=autoshard.OptimizerParallel(level=level, threshold_kb=0),
    )
    assert plan.results[1].local_shape == (16, 16)
    assert (plan.arguments[1].local_shape == (16, 32)) == bool(donated)
    assert (plan.arguments[0].local_shape == (16, 32)) == (level < 3)


@pytest.mark.parametrize("optimizer", ["adamw", "lion", "adafactor", "sgd"])
def test_every_optimizer_equals_the_unsharded_run(optimizer: str) -> None:
    update = {
        "adamw": optax.adamw(1e-2),
        "lion": optax.lion(1e-3),
        "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=16),
        "sgd": optax.sgd(1e-2),
    }[optimizer]

    def apply(parameters: Tree, x: Any) -> Any:
        return jnp.mean(jnp.square(jnp.tanh(x @ parameters["a"]) @ parameters["b"] - 1))

    def step(parameters: Tree, state: Tree, x: Any) -> Tree:
        loss, gradients = jax.value_and_grad(apply)(parameters, x)
        updates, state = update.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state, loss

    random = np.random.default_rng(5)
    parameters = {
        name: random.standard_normal((32, 32)).astype(np.float32) / 6 for name in ("a", "b")
    }
    x = random.standard_normal((BATCH, 32)).astype(np.float32)
    args = (parameters, jax.device_get(update.init(parameters)), x)
    spread = jitted(step, 2)
    assert_equal(jax.device_get(spread(*args)), unsharded(step, args), 1e-5)
    kinds = {one.kind for one in spread.plan(*args).summary.collectives}
    assert "reduce-scatter" in kinds


SMALL = 48_700
"""Bytes in which the step fits with gradients added up in cut buffers, not in whole ones."""


def accumulated(shard_buffers: bool, memory_limit: int | None) -> tuple[Any, tuple[Any, ...]]:
    """A step over 4 micro-batches of ``BATCH``, spread at level 2, and its arguments."""
    loss = partial(loss_of, scanned)
    summed = step_of(autoshard.accumulate_gradients(loss, 4, mean=False))
    args = arguments(scanned, 4 * BATCH)
    buffers = {"gradient_accumulation_shard": shard_buffers}
    return jitted(summed, 2, memory_limit=memory_limit, **buffers), args


@pytest.mark.parametrize(
    ("shard_buffers", "memory_limit", "kind", "times"),
    [
        pytest.param(True, SMALL, "reduce-scatter", 4 * LAYERS, id="cut"),
        pytest.param(True, None, "reduce-scatter", 1, id="cut behind the loop"),
        pytest.param(False, None, "all-reduce", 1, id="whole"),
    ],
)
@both_partitioners
def test_accumulated_gradients_are_those_of_the_batch(
    shard_buffers: bool, memory_limit: int | None, kind: str, times: int, use_shardy: bool
) -> None:
    spread, args = accumulated(shard_buffers, memory_limit)
    with shardy(use_shardy):
        found = run(spread, args)
    assert_equal(found, unsharded(plain_step(scanned), args), 0.0)
    collectives = spread.plan(*args).summary.collectives
    assert max(one.times for one in collectives if one.kind == kind) == times


def test_sharded_buffers_take_less_memory() -> None:
    steps = (accumulated(True, SMALL), accumulated(False, None))
    plans = [step.plan(*args) for step, args in steps]
    saved = PARAMETER_BYTES * (DEVICES - 1) // DEVICES
    assert plans[0].peak_bytes <= plans[1].peak_bytes - saved


@every_level
def test_several_updates_in_a_loop_equal_the_unsharded_run(level: int) -> None:
    update = plain_step(unstacked)

    def steps(parameters: Tree, state: Tree, batches: Any) -> Tree:
        def one(carried: Tree, x: Any) -> tuple[Tree, Any]:
            parameters, state, loss = update(*carried, x)
            return (parameters, state), loss

        return jax.lax.scan(one, (parameters, state), batches)

    parameters, state, x = arguments(unstacked)
    args = (parameters, state, np.stack([x, -x]))
    options = autoshard.OptimizerParallel(level=level, threshold_kb=0)
    mesh = jax.make_mesh((DEVICES,), ("data",), axis_types=(AxisType.Auto,))
    batch = NamedSharding(mesh, PartitionSpec(None, "data"))
    fn = autoshard.jit(
        steps,
        mesh="data=8",
        mode="semi_auto",
        in_shardings=(None, None, batch),
        optimizer_parallel=options,
    )
    assert_equal(jax.device_get(fn(*args)), unsharded(steps, args), 0.0)
    states = [v for v in fn.plan(*args).arguments if v.name.startswith("state")]
    assert all(prod(v.local_shape) == prod(v.shape) // DEVICES for v in states)


def test_an_update_that_multiplies_matrices() -> None:
    """As Muon does with its momentum; here one step of it, in integers."""

    def step(parameters: Tree, momentum: Tree, x: Any) -> Tree:
        gradients = jax.grad(partial(loss_of, unstacked))(parameters, x)
        momentum = jax.tree.map(lambda m, g: wrapped(m + g), momentum, gradients)
        parameters = jax.tree.map(lambda p, m: p - wrapped(m @ (m.T @ m)), parameters, momentum)
        return parameters, momentum

    parameters, _, x = arguments(unstacked)
    args = (parameters, jax.tree.map(np.zeros_like, parameters), x)
    spread = jitted(step, 2)
    assert_equal(run_loosely(spread, args), unsharded(step, args), 0.0)
    plan = spread.plan(*args)
    assert argument_bytes(plan) == PARAMETER_BYTES * 9 // 8 + BATCH_BYTES // DEVICES


def test_weights_that_are_not_trained_are_spread_at_level_3() -> None:
    """A frozen matrix with a trained correction of low rank."""

    def step(low: Tree, momentum: Tree, frozen: Any, x: Any, labels: Any) -> Tree:
        def loss(low: Tree) -> Any:
            outputs = wrapped(x @ frozen + x @ low["a"] @ low["b"])
            return jnp.sum(jnp.square(outputs - jax.nn.one_hot(labels, HEAD)))

        gradients = jax.grad(loss)(low)
        momentum = jax.tree.map(lambda m, g: wrapped(m + g), momentum, gradients)
        return jax.tree.map(lambda p, m: p - m, low, momentum), momentum

    random = np.random.default_rng(4)

    def draw(*shape: int) -> np.ndarray:
        return random.integers(-1, 2, shape).astype(np.float32)

    low = {"a": draw(WIDTH, 2), "b": draw(2, HEAD)}
    labels = random.integers(0, HEAD, BATCH).astype(np.int32)
    zeros = jax.tree.map(np.zeros_like, low)
    args = (low, zeros, draw(WIDTH, HEAD), draw(BATCH, WIDTH), labels)
    spread = autoshard.jit(
        step,
        cluster=f"cpu:{DEVICES}",
        mode="data_parallel",
        batch_argnums=(3, 4),
        optimizer_parallel=autoshard.OptimizerParallel(level=3, threshold_kb=0),
    )
    assert_equal(run_loosely(spread, args), unsharded(step, args), 0.0)
    (frozen,) = (v for v in spread.plan(*args).arguments if v.name == "frozen")
    assert frozen.local_shape == (WIDTH // DEVICES, HEAD)


def test_half_the_devices_share_a_copy() -> None:
    """``shard_size=4`` of 8: two copies of each state, and dim 0 of 32 rows in 4 parts."""
    fn, args = plain_step(scanned), arguments(scanned)
    spread = jitted(fn, 1, shard_size=4)
    assert_equal(run(spread, args), unsharded(fn, args), 0.0)
    shardings = {value.name: value.sharding for value in spread.plan(*args).arguments}
    assert str(shardings["state[0].trace['head']"]) == "[{data_part}, {}]"
    assert str(shardings["x"]) == "[{data, data_part}, {}]"


@every_level
def test_the_search_is_spread_and_checked(level: int) -> None:
    fn, args = plain_step(unstacked), arguments(unstacked)
    options = autoshard.OptimizerParallel(level=level, threshold_kb=0)
    searched = autoshard.jit(fn, cluster="cpu:8", optimizer_parallel=options, donate_argnums=(0, 1))
    assert_equal(run_loosely(searched, args), unsharded(fn, args), 0.0)
    plan = searched.plan(*args)
    assert plan.summary.cost_model == "seconds"
    states = [value for value in plan.arguments if value.name.startswith("state")]
    assert all(prod(v.local_shape) == prod(v.shape) // DEVICES for v in states)


def test_the_search_spreads_states_by_itself_where_memory_is_short() -> None:
    fn, args = plain_step(unstacked), arguments(unstacked)
    limit = planned(unstacked, 1).peak_bytes
    assert limit < planned(unstacked, 0).peak_bytes
    plan = autoshard.plan(fn, *args, cluster="cpu:8", memory_limit=limit, donate_argnums=(0, 1))
    assert plan.peak_bytes <= limit
    states = [value for value in plan.arguments if value.name.startswith("state")]
    assert all(value.local_shape != value.shape for value in states)


def test_what_does_not_fit_when_spread_is_an_error() -> None:
    with pytest.raises(autoshard.DoesNotFitError, match=r"level 1 the plan needs .* KiB"):
        autoshard.plan(
            plain_step(unstacked),
            *arguments(unstacked),
            cluster="cpu:8",
            memory_limit=2000,
            optimizer_parallel=autoshard.OptimizerParallel(threshold_kb=0),
        )
