"""``autoshard.kernel``: a function that no compiler looks into runs on blocks, by its rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equivalence import assert_equal
from jax.experimental.pallas.ops.tpu import splash_attention as splash
from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

import autoshard
from norm_kernel import pallas_norm, plain_norm

LAYERS, BATCH, LENGTH, HEADS, GROUPS, WIDTH = 2, 8, 16, 8, 4, 8
P = jax.sharding.PartitionSpec
ATTENTION = "b h q d, b k s d, b k s d -> b h q d; h = k * g"


def attend(q: Any, k: Any, v: Any) -> Any:
    group = q.shape[1] // k.shape[1]
    k, v = jnp.repeat(k, group, 1), jnp.repeat(v, group, 1)
    scores = jnp.einsum("bhqd,bhsd->bhqs", q, k) / q.shape[-1] ** 0.5
    return jnp.einsum("bhqs,bhsd->bhqd", jax.nn.softmax(scores, -1), v)


@jax.custom_vjp
def norm(x: Any, scale: Any) -> Any:
    """Forward a Pallas kernel, backward none: both halves are calls of ``autoshard.kernel``."""
    return autoshard.kernel(pallas_norm, "b s d, d -> b s d", whole=("s", "d"))(x, scale)


def _norm_forward(x: Any, scale: Any) -> Any:
    return norm(x, scale), (x, scale)


def _norm_backward(kept: Any, g: Any) -> Any:
    def of_x(x: Any, scale: Any, g: Any) -> Any:
        return jax.vjp(plain_norm, x, scale)[1](g)[0]

    def of_scale(x: Any, scale: Any, g: Any) -> Any:
        return jax.vjp(plain_norm, x, scale)[1](g)[1]

    of_x = autoshard.kernel(of_x, "b s d, d, b s d -> b s d", whole="d")
    of_scale = autoshard.kernel(of_scale, "b s d, d, b s d -> d", sums=("b", "s"), whole="d")
    return of_x(*kept, g), of_scale(*kept, g)


norm.defvjp(_norm_forward, _norm_backward)
attention = autoshard.kernel(attend, ATTENTION, whole=("s", "d"))


def training_step(attention: Callable[..., Any], norm: Callable[..., Any]) -> Callable[..., Any]:
    """A scanned, checkpointed transformer; its loss and gradients."""

    def layer(x: Any, weights: Any) -> tuple[Any, None]:
        y = norm(x, weights["scale"])
        q, k, v = (
            (y @ weights[name]).reshape(*x.shape[:2], -1, WIDTH).swapaxes(1, 2) for name in "qkv"
        )
        return x + attention(q, k, v).swapaxes(1, 2).reshape(x.shape) @ weights["o"], None

    def loss(weights: Any, x: Any) -> Any:
        last, _ = jax.lax.scan(jax.checkpoint(layer), x, weights)
        return jnp.mean(last**2)

    return jax.value_and_grad(loss)


def arguments() -> tuple[Any, Any]:
    random, all_heads = np.random.default_rng(7), HEADS * WIDTH
    sizes = {"q": all_heads, "k": GROUPS * WIDTH, "v": GROUPS * WIDTH, "o": all_heads}
    weights = {
        name: random.normal(size=(LAYERS, all_heads, size)).astype(np.float32) / all_heads**0.5
        for name, size in sizes.items()
    }
    weights["scale"] = 1 + 0.1 * random.normal(size=(LAYERS, all_heads)).astype(np.float32)
    return weights, random.normal(size=(BATCH, LENGTH, all_heads)).astype(np.float32)


@pytest.mark.parametrize(
    "options",
    [
        {"cluster": "cpu:8"},
        {
            "mesh": "dp=2,tp=4",
            "mode": "semi_auto",
            "in_shardings": (
                {**dict.fromkeys("qkv", P(None, None, "tp")), "o": P(None, "tp"), "scale": P()},
                P("dp"),
            ),
        },
    ],
    ids=["auto", "semi_auto"],
)
@pytest.mark.filterwarnings("ignore::autoshard.PlanMismatchWarning")
def test_a_step_equals_the_one_without_kernels(partitioner: bool, options: dict[str, Any]) -> None:
    given = arguments()
    step = autoshard.jit(training_step(attention, norm), **options)
    expected = jax.jit(training_step(attend, plain_norm))(*given)
    assert_equal(jax.device_get(step(*given)), jax.device_get(expected), 1e-5)
    calls = [op for op in step.plan(*given).ops if op.name == "attend"]
    assert calls
    assert all("{}, {}, {}, {}], [{}, {}, {}, {}]," not in (op.strategy or "") for op in calls)


def test_every_transformation_computes_the_function() -> None:
    q = np.random.default_rng(1).normal(size=(3, 2, 4, 16, 8)).astype(np.float32)
    k = q[:, :, :2] + 1

    def loss(attention: Callable[..., Any]) -> Callable[..., Any]:
        mapped = jax.vmap(attention, in_axes=(0, 0, None))
        return lambda q, k: jnp.sum(jnp.sin(jax.checkpoint(mapped)(q, k, k[0])))

    def twice(fn: Callable[..., Any]) -> Callable[..., Any]:
        return jax.grad(lambda q, k: jnp.sum(jax.grad(fn)(q, k) ** 2))

    for transformed in (jax.grad, twice, jax.jit):
        found = transformed(loss(attention))(q, k)
        expected = transformed(loss(attend))(q, k)
        assert_equal(jax.device_get(found), jax.device_get(expected), 2e-5)
    run = autoshard.jit(jax.grad(loss(attention), (0, 1)), cluster="cpu:8")
    expected = jax.grad(loss(attend), (0, 1))(q, k)
    assert_equal(jax.device_get(run(q, k)), jax.device_get(expected), 2e-5)


def test_results_of_parts_are_added(partitioner: bool) -> None:
    def cross_entropy(x: Any, labels: Any, scale: float) -> tuple[Any, Any]:
        picked = jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None], 1)
        return -scale * picked.sum(), jnp.bincount(labels, length=4)

    kernel = autoshard.kernel(cross_entropy, "b c, b -> (), _", sums="b", whole="c")
    x = np.random.default_rng(2).normal(size=(64, 32)).astype(np.float32)
    labels = np.arange(64, dtype=np.int32) % 4
    options: Any = {"mesh": "d=8", "in_shardings": (P("d"), P("d"))}
    run = autoshard.jit(lambda x, labels: kernel(x, labels, 0.5), **options)
    found = jax.device_get(run(x, labels))
    assert_equal(found, jax.device_get(cross_entropy(x, labels, 0.5)), 1e-5)
    (call,) = [op for op in run.plan(x, labels).ops if op.name == "cross_entropy"]
    assert call.strategy == "[{d}, {}], [{d}] -> [], [{}]"
    gradient = autoshard.jit(jax.grad(lambda x: kernel(x, labels, 0.5)[0]), cluster="cpu:8")
    expected = jax.grad(lambda x: cross_entropy(x, labels, 0.5)[0])(x)
    assert_equal(jax.device_get(gradient(x)), jax.device_get(expected), 1e-5)


def test_a_kernel_of_tpus_is_lowered_for_them_on_blocks() -> None:
    kernel = autoshard.kernel(
        lambda q: flash_attention(q, q, q, causal=True), "b h s d -> b h s d", whole=("s", "d")
    )
    q = jax.ShapeDtypeStruct((8, 4, 512, 128), jnp.bfloat16)
    plan = autoshard.plan(kernel, q, cluster="v5e:4x4")
    assert plan.arguments[0].sharding.tile[:2] in ((8, 2), (4, 4))
    batch, heads, *_ = plan.arguments[0].sharding.local_shape(q.shape)
    text = str(plan.exported("autoshard-export-shardy"))
    assert f"tensor<{batch}x{heads}x512x128xbf16>" in text
    assert "tpu_custom_call" in text


@pytest.mark.parametrize("form", ["autoshard-export-shardy", "autoshard-export-gspmd"])
def test_a_part_of_a_table_is_as_long_as_the_kernel_expects(form: str) -> None:
    length, width = 8192, 128
    mask = splash.MultiHeadMask([splash.CausalMask((length, length))])
    sizes = splash.BlockSizes(block_q=512, block_kv=512, block_kv_compute=512)
    attend = splash.make_splash_mha_single_device(mask, block_sizes=sizes)
    q = jax.ShapeDtypeStruct((1, length, width), jnp.bfloat16)
    plan = autoshard.plan(attend, q, q, q, cluster="v5p:2x2x2")
    (call,) = [op for op in plan.ops if op.name == "tpu_custom_call"]
    assert str(plan.mesh.axes[0].name) in (call.strategy or "").partition("->")[2]
    lines = str(plan.exported(form)).splitlines()
    (kernel,) = [line for line in lines if "tpu_custom_call" in line]
    part = length // 8
    assert f"tensor<1x{part}x{width}xbf16>" in kernel
    assert "tensor<1x16x16xi8>" in kernel  # tables of 16 blocks of queries, of which it has two
    assert sum("stablehlo.pad" in line and "tensor<1x2x16xi8>" in line for line in lines) == 2


@pytest.mark.parametrize(
    ("fn", "rule", "options", "said"),
    [
        (attend, "b h q d, b k s d -> b h q d", {}, "attend: the rule .* has k in operands only"),
        (lambda x: x, "a b -> a b", {}, "has 2 dims for operand 0, whose shape is"),
        (
            lambda x: x,
            "a b c, a -> a b c",
            {},
            "has 1 dims for operand 1, whose shape is|is for 3 arrays",
        ),
        (
            lambda x: jnp.cumsum(x, 1).reshape(64, 32, 2),
            "a b c -> a b c",
            {},
            r"says that a may be cut, but the kernel fails on operands of \(32, 32, 2\)",
        ),
        (
            lambda x: jnp.zeros((64, 32)) + x[:1, :, 0],
            "a b _ -> a b",
            {},
            r"of part 1 of 2 the kernel makes result 0 of shape \(64, 32\), not \(32, 32\)",
        ),
        (lambda x: x[::2], "a b c -> a b c", {}, "a dim of size 32 where a=64"),
        (lambda x: jax.debug.print("{}", x), "a b c -> ", {}, "without dims"),
        (lambda x: x, "a b c => a b c", {}, 'needs one "->"'),
    ],
)
def test_errors_name_the_kernel_and_the_line(
    fn: Callable[..., Any], rule: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(autoshard.StrategyError, match=rf"(?s)test_kernel.py:\d+.*{said}"):
        jax.jit(lambda x: autoshard.kernel(fn, rule, **options)(x))(
            np.zeros((64, 32, 2), np.float32)
        )


def test_effects_and_traced_values_from_outside_are_refused() -> None:
    def noisy(x: Any) -> Any:
        jax.debug.print("{}", x)
        return x

    x = np.zeros((8, 4), np.float32)
    with pytest.raises(autoshard.StrategyError, match="noisy: the kernel has the effects"):
        jax.jit(autoshard.kernel(noisy, "a b -> a b"))(x)
    with pytest.raises(autoshard.StrategyError, match="reads a traced value that is none of its"):
        jax.jit(lambda x, y: autoshard.kernel(lambda x: x * y, "a b -> a b")(x))(x, x)


def test_what_a_kernel_computes_is_counted() -> None:
    q = jax.ShapeDtypeStruct((8, 8, 512, 64), jnp.bfloat16)
    k = jax.ShapeDtypeStruct((8, 4, 512, 64), jnp.bfloat16)
    plan = autoshard.plan(attention, q, k, k, cluster="v5e:2x2")
    at_peak = 4 * 8 * 8 * 512**2 * 64 / 4 / 197e12
    assert at_peak < plan.compute_seconds < 2 * at_peak
