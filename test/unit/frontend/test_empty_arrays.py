"""Arrays without elements are planned in every mode, at a cost that is a number."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard


def _array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _step(w: Any, m: Any, x: Any) -> Any:
    loss, gradient = jax.value_and_grad(lambda w: jnp.sum((x @ w) ** 2))(w)
    m = 0.5 * m + gradient
    return w - m, m, loss


def _layers(w: Any, x: Any) -> Any:
    layer = autoshard.recompute(lambda x, w: (jnp.tanh(x @ w), None), mp_comm_recompute=False)
    return jax.value_and_grad(lambda w: jnp.sum(jax.lax.scan(layer, x, w)[0] ** 2))(w)


def _convolution(w: Any, x: Any) -> Any:
    def loss(w: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers).sum()

    return jax.grad(loss)(w)


def _padded_convolution(w: Any, x: Any) -> Any:
    """One row before the image, two after it."""
    numbers = ("NHWC", "HWIO", "NHWC")
    sides = ((1, 2), (0, 0))
    return jax.lax.conv_general_dilated(x, w, (1, 1), sides, dimension_numbers=numbers)


def _lookup(table: Any, rows: Any) -> Any:
    return jax.grad(lambda table: jnp.take(table, rows, axis=0).sum())(table)


def _means(w: Any, x: Any) -> Any:
    return jnp.mean(x, axis=1), jnp.cumsum(w, axis=0)[:0]


PROGRAMS = {
    "no rows": (_step, (_array(16, 32), _array(16, 32), _array(0, 16))),
    "no features": (_step, (_array(0, 32), _array(0, 32), _array(8, 0))),
    "no layers": (_layers, (_array(0, 16, 16), _array(8, 16))),
    "no width": (_layers, (_array(4, 0, 0), _array(8, 0))),
    "no images": (_convolution, (_array(3, 3, 4, 8), _array(0, 8, 8, 4))),
    "no pixels": (_convolution, (_array(3, 3, 4, 8), _array(8, 0, 8, 4))),
    "no pixels but padding": (_padded_convolution, (_array(3, 3, 4, 8), _array(8, 0, 8, 4))),
    "no pixels made": (_padded_convolution, (_array(9, 3, 4, 8), _array(8, 4, 8, 4))),
    "no channels": (_convolution, (_array(3, 3, 0, 8), _array(8, 8, 8, 0))),
    "no lookups": (_lookup, (_array(16, 8), _array(0, dtype=jnp.int32))),
    "nothing to average": (_means, (_array(8, 4), _array(8, 0))),
    "nothing averaged": (_means, (_array(8, 4), _array(0, 8))),
}

SPREAD = autoshard.OptimizerParallel(level=3, threshold_kb=0)
MODES: dict[str, dict[str, Any]] = {
    "search": {"cluster": "v5p:2x2x2"},
    "symbolic": {"cluster": "cpu:8", "mesh": "a=2,b=4", "cost_model": "symbolic"},
    "spread": {"cluster": "h100:8", "optimizer_parallel": SPREAD},
    "data parallel": {"cluster": "cpu:8", "mesh": "a=8", "mode": "data_parallel"},
    "recompute and host": {"cluster": "h100:8", "recompute": "auto", "host_offload": "auto"},
    "padded": {"cluster": "cpu:8", "mesh": "a=8", "mode": "auto", "indivisible": "pad"},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.filterwarnings("ignore:.*axis:autoshard.AutoshardWarning")
def test_empty_arrays_are_planned(program: str, mode: str) -> None:
    fn: Callable[..., Any]
    fn, types = PROGRAMS[program]
    options = MODES[mode]
    if mode == "data parallel":
        options = options | {"batch_argnums": len(types) - 1}
    plan = autoshard.plan(fn, *types, **options)
    for number in (plan.step_seconds, plan.peak_bytes, plan.lower_bound_seconds):
        assert math.isfinite(number)
    assert plan.step_seconds >= 0
    for value in (*plan.arguments, *plan.results):
        assert math.prod(value.local_shape) <= math.prod(value.shape)
        assert (0 in value.local_shape) == (0 in value.shape)


def test_a_batch_without_examples_stays_whole() -> None:
    plan = autoshard.plan(
        lambda w, x: x @ w,
        _array(16, 32),
        _array(0, 16),
        mesh="data=8",
        mode="data_parallel",
        batch_argnums=1,
    )
    assert plan.arguments[1].local_shape == (0, 16)
    assert str(plan.arguments[1].sharding) == "[{}, {}]"


def test_a_result_without_elements_is_whole() -> None:
    """Each device gets all of it from XLA, also where a part was asked for."""

    def none_of(x: Any) -> Any:
        return (x * 2)[4:4]

    step = autoshard.jit(none_of, mesh="a=4,b=2", in_shardings=jax.P(None, "b"))
    assert step(jnp.ones((8, 4))).__array__().shape == (0, 4)
    assert step.plan(jnp.ones((8, 4))).results[0].sharding.tile == (1, 1)


def test_a_result_without_elements_is_whole_though_a_batch_is_cut() -> None:
    def none_of(x: Any) -> Any:
        return x.transpose(2, 0, 1)[0:0]

    step = autoshard.jit(none_of, mesh="data=8", mode="data_parallel", batch_argnums=0)
    assert step(jnp.ones((8, 4, 2))).__array__().shape == (0, 8, 4)
