"""What is computed again gives the same, really runs twice, and needs less memory."""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equivalence import assert_equal

import autoshard
from autoshard.passes.memory_limit import MEMORY_MARGIN

LAYERS, WIDTH, HIDDEN, ROWS = 4, 32, 64, 2048
Params = Any


def _layer(x: Any, p: Any) -> Any:
    """Exact on small integers, in any order of sums."""
    hidden = jnp.maximum(x @ p["up"], 0.0)
    return x + jnp.sign(hidden @ p["mid"]) @ p["down"] + jnp.maximum(hidden, 1.0) @ p["down"]


def _smooth(x: Any, p: Any) -> Any:
    hidden = jnp.tanh(x @ p["up"])
    return x + jax.nn.gelu(hidden @ p["mid"]) @ p["down"]


def _normed(x: Any, p: Any) -> Any:
    return x + _smooth(x / jnp.sqrt(1.0 + (x * x).mean(-1, keepdims=True)), p)


def _step(layer: Callable[[Any, Any], Any], scans: bool = False) -> Callable[[Any, Any], Any]:
    """``(parameters of each layer, x)``, stacked ones if a scan goes over them."""

    def loss(params: Any, x: Any) -> Any:
        if scans:
            x, _ = jax.lax.scan(lambda x, p: (layer(x, p), None), x, params)
        else:
            for p in params:
                x = layer(x, p)
        return (x * x).sum()

    def step(params: Any, x: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda a, b: a - 0.01 * b, params, gradient), value

    return step


def _stacked(params: Any) -> Any:
    return jax.tree.map(lambda *layers: np.stack(layers), *params)


def _arguments(integers: bool) -> tuple[Any, Any]:
    random = np.random.default_rng(3)

    def array(*shape: int) -> Any:
        if not integers:
            return random.normal(size=shape).astype(np.float32) / shape[0] ** 0.5
        found = random.integers(-1, 2, shape) * (random.random(shape) < 0.05)
        return found.astype(np.float32)

    shapes = {"up": (WIDTH, HIDDEN), "mid": (HIDDEN, HIDDEN), "down": (HIDDEN, WIDTH)}
    params = [{name: array(*shape) for name, shape in shapes.items()} for _ in range(LAYERS)]
    return params, array(ROWS, WIDTH)


OPTIONS = {"cluster": "cpu:8", "mesh": "data=8", "mode": "data_parallel", "batch_argnums": 1}


def _peak(step: Any, arguments: Any, options: dict[str, Any] = OPTIONS) -> float:
    return autoshard.plan(step, *arguments, **options).peak_bytes


@pytest.mark.parametrize("layer", [_layer, _smooth], ids=["integers", "reals"])
def test_what_is_computed_again_gives_the_same(partitioner: bool, layer: Any) -> None:
    step, arguments = _step(layer), _arguments(layer is _layer)
    limit = 0.8 * _peak(step, arguments)
    again = autoshard.jit(step, **OPTIONS, recompute="auto", memory_limit=limit)
    plan = again.plan(*arguments)
    assert plan.peak_bytes <= limit
    assert plan.summary is not None
    assert plan.summary.recomputed
    expected = jax.device_get(jax.jit(step)(*arguments))
    assert_equal(jax.device_get(again(*arguments)), expected, 0.0 if layer is _layer else 2e-5)


def test_copies_stand_behind_barriers_with_something_late(partitioner: bool) -> None:
    """XLA:CPU takes barriers away and merges the copies; what it is given is looked at here."""
    step, arguments = _step(_smooth), _arguments(False)
    limit = 0.75 * _peak(step, arguments)
    once = autoshard.jit(step, **OPTIONS).lower(*arguments).as_text()
    again = autoshard.jit(step, **OPTIONS, recompute="auto", memory_limit=limit)
    text = again.lower(*arguments).as_text()
    assert text.count("dot_general") > once.count("dot_general")
    barriers = re.findall(r"optimization_barrier (.*)", text)
    assert barriers
    assert any("," in operands.split(":")[0] for operands in barriers)


@pytest.mark.parametrize("layer", [_layer, _normed], ids=["integers", "reals"])
def test_loops_stack_less_and_give_the_same(partitioner: bool, layer: Any) -> None:
    integers = layer is _layer
    step, (params, x) = _step(layer, scans=True), _arguments(integers)
    arguments = (_stacked(params), x)
    once = autoshard.jit(step, **OPTIONS)
    limit = 0.7 * once.plan(*arguments).peak_bytes
    again = autoshard.jit(step, **OPTIONS, recompute="auto", memory_limit=limit)
    plan = again.plan(*arguments)
    assert plan.peak_bytes <= limit
    assert plan.summary is not None
    assert plan.summary.recomputed
    expected = jax.device_get(jax.jit(step)(*arguments))
    assert_equal(jax.device_get(again(*arguments)), expected, 0.0 if integers else 2e-5)
    temporary = [
        one.lower(*arguments).compile().memory_analysis().temp_size_in_bytes
        for one in (once, again)
    ]
    assert temporary[1] < 0.85 * temporary[0]


@pytest.mark.parametrize(
    ("rows", "share", "leaves_room"), [(512, 0.68, False), (512, 0.77, True), (256, 0.74, False)]
)
def test_a_limit_is_kept_where_converted_weights_are_stacked(
    rows: int, share: float, leaves_room: bool
) -> None:
    """Their stacks are not freed, so that others have to go: known once the loops are rewritten.

    The margin of a chip is left of a given limit, too, if it costs no more than it is.
    """

    def narrow(x: Any, p: Any) -> Any:
        return _smooth(x, jax.tree.map(lambda w: w.astype(jnp.bfloat16), p))

    params, x = _arguments(False)
    params = _stacked(params)
    arguments = (params, x[:rows].astype(jnp.bfloat16))
    # A compiler that converts stacks before the loops; that of CPUs does not.
    options: dict[str, Any] = OPTIONS | {"compiler": "xla-tpu-0.0.42"}
    limit = share * _peak(_step(narrow, scans=True), arguments, options)
    options |= {"recompute": "auto", "memory_limit": limit}
    peak = autoshard.plan(_step(narrow, scans=True), *arguments, **options).peak_bytes
    assert peak <= ((1 - MEMORY_MARGIN) * limit if leaves_room else limit)


def _marked(**switches: bool) -> Any:
    return _step(autoshard.recompute(_smooth, **switches))


TENSOR = {"cluster": "cpu:8", "mesh": "model=8"}
"""With few rows sums over "model" are cheaper than gathered parameters."""

FEW = 16


@pytest.mark.parametrize("keep", ["mp_comm_recompute", "parallel_optimizer_comm_recompute"])
def test_marks_give_the_same_with_every_switch(partitioner: bool, keep: str) -> None:
    params, x = _arguments(False)
    arguments = (params, x[:FEW])
    run = autoshard.jit(_marked(**{keep: False}), **TENSOR)
    expected = jax.device_get(jax.jit(_step(_smooth))(*arguments))
    assert_equal(jax.device_get(run(*arguments)), expected, 2e-5)


def _spectral(x: Any, p: Any) -> Any:
    """With a complex constant in the layer."""
    turned = jnp.fft.ifft(jnp.fft.fft(x) * (2 + 1j)).real
    return x + jnp.tanh(turned @ p["up"]) @ p["down"]


@pytest.mark.parametrize("scans", [False, True], ids=["unrolled", "scan"])
def test_marks_take_layers_with_complex_constants(scans: bool) -> None:
    """jaxlib ends the process where the value of such a constant is asked for."""
    params, x = _arguments(False)
    params = [{"up": p["up"], "down": p["down"]} for p in params[:2]]
    arguments = (_stacked(params) if scans else params, x[:FEW])
    layer = autoshard.recompute(_spectral, mp_comm_recompute=False)
    run = autoshard.jit(_step(layer, scans), **OPTIONS)
    expected = jax.device_get(jax.jit(_step(_spectral, scans))(*arguments))
    assert_equal(_run_quietly(run, arguments), expected, 2e-5)


def test_results_of_collectives_are_kept_where_the_switch_says_so() -> None:
    params, x = _arguments(False)
    column = jax.sharding.PartitionSpec(None, "model")
    row = jax.sharding.PartitionSpec("model", None)
    # the second matmul contracts a cut dim: its sum over "model" is what may be kept
    pins = ([{"up": column, "mid": row, "down": column} for _ in params], None)
    sent = [
        autoshard.plan(
            _marked(mp_comm_recompute=again), params, x[:FEW], **TENSOR, in_shardings=pins
        ).communication_seconds
        for again in (True, False)
    ]
    assert sent[1] < sent[0]


def _cut_inside(x: Any, p: Any) -> Any:
    contract = autoshard.shard(jnp.matmul, in_strategy=((1, 8), (8, 1)))
    return x + jnp.tanh(contract(jnp.tanh(x @ p["up"]), p["mid"])) @ p["down"]


def _sent(plan: autoshard.Plan, kind: str) -> float:
    assert plan.summary is not None
    return sum(one.total_bytes for one in plan.summary.collectives if one.kind == kind)


def _run_quietly(step: Any, arguments: Any) -> Any:
    """Whatever XLA sends for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", autoshard.PlanMismatchWarning)
        return jax.device_get(step(*arguments))


def _run_as_planned(step: Any, arguments: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", autoshard.PlanMismatchWarning)
        return jax.device_get(step(*arguments))


def test_a_loop_keeps_results_of_collectives(partitioner: bool) -> None:
    """The sum of each layer is stacked by the forward loop, and read by the backward loop."""
    params, x = _arguments(False)
    arguments = (_stacked(params), x[:FEW])
    sent: list[float] = []
    for again in (True, False):
        layer = autoshard.recompute(_cut_inside, mp_comm_recompute=again)
        run = autoshard.jit(_step(layer, scans=True), **TENSOR, mode="semi_auto")
        expected = jax.device_get(jax.jit(_step(_cut_inside, scans=True))(*arguments))
        assert_equal(_run_as_planned(run, arguments), expected, 2e-5)
        sent.append(_sent(run.plan(*arguments), "all-reduce"))
    one_sum = LAYERS * FEW * HIDDEN * 4 * 2 * 7 / 8  # of float32, on a ring of 8
    assert sent[0] - sent[1] == one_sum


@pytest.mark.parametrize(
    ("scans", "level"), [(True, 0), (True, 3), (False, 0)], ids=["pins", "level 3", "unrolled"]
)
def test_gathered_parameters_are_kept_where_the_switch_says_so(
    partitioner: bool, scans: bool, level: int
) -> None:
    """Cut by pins or by optimizer parallelism, each is gathered once a step instead of twice."""
    params, x = _arguments(False)
    options: dict[str, Any] = {}
    if level:
        spread = autoshard.OptimizerParallel(level=level, threshold_kb=0)
        options = OPTIONS | {"optimizer_parallel": spread}
    else:
        cut = jax.sharding.PartitionSpec(*[None] * scans, "data", None)
        pins = ({name: cut for name in params[0]}, jax.sharding.PartitionSpec("data"))
        options = {"cluster": "cpu:8", "mesh": "data=8", "mode": "semi_auto", "in_shardings": pins}
        if not scans:
            options["in_shardings"] = ([pins[0]] * LAYERS, pins[1])
    if scans:
        params = _stacked(params)
    expected = jax.device_get(jax.jit(_step(_smooth, scans))(params, x))
    sent: list[float] = []
    for again in (True, False):
        layer = autoshard.recompute(_smooth, parallel_optimizer_comm_recompute=again)
        run = autoshard.jit(_step(layer, scans), **options)
        assert_equal(_run_as_planned(run, (params, x)), expected, 2e-5)
        sent.append(_sent(run.plan(params, x), "all-gather"))
    once = 4 * sum(array.size for array in jax.tree.leaves(params)) * 7 / 8  # float32
    assert sent[1] == once < sent[0]


@pytest.mark.parametrize("switch", ["mp_comm_recompute", "parallel_optimizer_comm_recompute"])
def test_loops_in_loops_cannot_keep(switch: str) -> None:
    """Two scans of two layers each: the loops of the layers are not beside each other."""
    params, x = _arguments(False)
    stacked = jax.tree.map(
        lambda *layers: np.stack(layers).reshape(2, 2, *layers[0].shape), *params
    )
    keeps_sums = switch == "mp_comm_recompute"
    layer = autoshard.recompute(_cut_inside if keeps_sums else _smooth, **{switch: False})

    def group(x: Any, p: Any) -> Any:
        return jax.lax.scan(lambda x, p: (layer(x, p), None), x, p)

    def step(params: Any, x: Any) -> Any:
        gradient = jax.grad(lambda params: jax.lax.scan(group, x, params)[0].sum())(params)
        return jax.tree.map(jnp.subtract, params, gradient)

    spread = autoshard.OptimizerParallel(level=3, threshold_kb=0)
    options: dict[str, Any] = OPTIONS | {"optimizer_parallel": spread}
    if keeps_sums:
        options, x = TENSOR | {"mode": "semi_auto"}, x[:FEW]
    with pytest.raises(autoshard.PlanError, match=f"{switch}=False, but no op of the forward"):
        autoshard.plan(step, stacked, x, **options)


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="no libtpu: pip install autoshard[tpu]"
)
@pytest.mark.parametrize("scans", [False, True], ids=["unrolled", "scan"])
def test_the_tpu_compiler_keeps_the_limit(scans: bool) -> None:
    """Without recomputing it needs more: XLA does not undo what the pass writes."""

    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((LAYERS,) * scans + shape, jnp.float32)

    width, hidden, rows = 512, 2048, 65536
    layer = {"up": array(width, hidden), "mid": array(hidden, hidden), "down": array(hidden, width)}
    x = jax.ShapeDtypeStruct((rows, width), jnp.float32)
    step = _step(_smooth, scans)
    arguments = (layer if scans else [layer] * LAYERS, x)
    options: dict[str, Any] = {"cluster": "v5e:2x2", "mesh": "data=4", "mode": "data_parallel"}
    options |= {"batch_argnums": 1, "donate_argnums": 0}
    once = autoshard.plan(step, *arguments, **options)
    limit = 0.8 * once.peak_bytes
    again = autoshard.plan(step, *arguments, **options, recompute="auto", memory_limit=limit)
    peaks = [plan.verify().program.live_bytes or 0 for plan in (once, again)]
    assert 0 < peaks[1] <= limit < peaks[0]


def test_a_choice_that_nobody_knows_is_refused() -> None:
    with pytest.raises(autoshard.PlanError, match="recompute='all' is not known"):
        autoshard.jit(_step(_smooth), recompute="all")  # type: ignore[arg-type]


def test_too_little_memory_is_told_with_numbers() -> None:
    step, arguments = _step(_smooth), _arguments(False)
    with pytest.raises(autoshard.DoesNotFitError, match=r"it still needs .* more than the 200 KiB"):
        autoshard.plan(step, *arguments, **OPTIONS, recompute="auto", memory_limit="200KiB")


def test_a_loop_that_computes_nothing_is_no_reason_to_end():
    def step(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            hidden = x
            for _ in range(3):
                hidden = jnp.tanh(hidden @ weights)
            return jnp.sum(hidden)

        count = jax.lax.while_loop(lambda count: count < 3, lambda count: count, 0)
        return weights - jax.grad(loss)(weights), count

    arguments = (jax.ShapeDtypeStruct((256, 256), "f4"), jax.ShapeDtypeStruct((4096, 256), "f4"))
    options: dict[str, Any] = {"cluster": "cpu:2", "trip_count": 3}
    free = autoshard.plan(step, *arguments, **options).peak_bytes
    limit = int(free * 0.9)
    plan = autoshard.plan(step, *arguments, **options, recompute="auto", memory_limit=limit)
    assert plan.peak_bytes <= limit
