"""Attention by cuDNN is cut by batch and heads, planned and compiled where no GPU is."""

from __future__ import annotations

import importlib.util
import re
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard._core import Arithmetic, Work
from autoshard.errors import AutoshardWarning
from autoshard.importer.work import work_of
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.ir.attributes import custom_call_target
from autoshard.ir.cudnn import cudnn_described
from autoshard.ir.module import operations_of
from autoshard.ir.reading import shape_of
from autoshard.kernels.cudnn_attention import cudnn_attention, is_cudnn_attention
from autoshard.passes.pipeline import run_passes

BATCH, LENGTH, HEADS, GROUPS, WIDTH = 32, 1024, 8, 4, 64
P = jax.sharding.PartitionSpec


def struct(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


Q = struct(BATCH, LENGTH, HEADS, WIDTH)
K = struct(BATCH, LENGTH, HEADS // GROUPS, WIDTH)
BIAS = struct(1, HEADS, LENGTH, LENGTH)
LENGTHS = struct(BATCH, dtype=jnp.int32)


def attend(q: Any, k: Any, bias: Any = None, lengths: Any = None) -> Any:
    return jax.nn.dot_product_attention(
        q,
        k,
        k,
        bias=bias,
        is_causal=True,
        query_seq_lengths=lengths,
        key_value_seq_lengths=lengths,
        implementation="cudnn",
    )


def gradients(*arguments: Any) -> Any:
    given = [n for n, it in enumerate(arguments) if it is not None and it.dtype == jnp.bfloat16]

    def loss(*arguments: Any) -> Any:
        return jnp.sum(jnp.tanh(attend(*arguments).astype(jnp.float32)))

    return jax.value_and_grad(loss, argnums=tuple(given))(*arguments)


def calls(module: mlir.Module) -> list[mlir.Operation]:
    return [op for op in operations_of(module.operation) if is_cudnn_attention(op)]


def described(op: mlir.Operation) -> tuple[Any, ...]:
    """All that a call is, but for the text of its configuration, which is compared as read."""
    attention = cudnn_attention(op)
    assert attention is not None
    layouts = str(op.attributes["operand_layouts"]), str(op.attributes["result_layouts"])
    shapes = [shape_of(value) for value in (*op.operands, *op.results)]
    return custom_call_target(op), attention.config, layouts, shapes


def as_jax_lowers(*arguments: Any) -> list[tuple[Any, ...]]:
    """The calls that JAX makes of arrays of these shapes, for one GPU."""
    with cudnn_described("9.0"):
        text = jax.jit(gradients).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
    module = parse_bytes(text.encode(), new_context(), "part")
    with module.context:
        # custom_partitioning calls stand for the functions behind them
        return [described(op) for op in calls(module)]


@pytest.mark.parametrize("form", ["shardy", "gspmd"])
@pytest.mark.parametrize(
    ("more", "pin", "part"),
    [
        ((), P("a", None, "b"), (4, 2)),
        ((None, LENGTHS), P("a", None, "b"), (4, 2)),
        ((BIAS,), P(None, None, "b"), (1, 2)),
    ],
    ids=["causal", "lengths", "bias"],
)
def test_each_device_makes_the_call_that_jax_makes_of_its_part(more, pin, part, form):
    plan = autoshard.plan(
        gradients,
        *(Q, K, *more),
        cluster=f"h100:{prod(part)}",
        mesh="a=4,b=2" if part[0] > 1 else "b=2",
        in_shardings=(pin, pin, *(None for _ in more)),
    )
    module = parse_bytes(plan.bytecode, new_context(), "planned")
    run_passes(module, [f"autoshard-export-{form}"])

    def of(it: Any) -> Any:
        if it is None or it is BIAS:
            return it if it is None else struct(1, HEADS // part[1], LENGTH, LENGTH)
        heads = () if it.ndim == 1 else (LENGTH, it.shape[2] // part[1], WIDTH)
        return struct(BATCH // part[0], *heads, dtype=it.dtype)

    with module.context:
        found = [described(op) for op in calls(module)]
    assert found == as_jax_lowers(*map(of, (Q, K, *more)))


def test_its_products_are_of_the_type_of_queries() -> None:
    plan = autoshard.plan(gradients, Q, K, cluster="h100:1")
    module = planned(plan)
    with module.context:
        found = [work_of(op) for op in calls(module)]
    assert [(each.work, each.arithmetic) for each in found] == [
        (Work.ATTENTION, Arithmetic.F16),
        (Work.ATTENTION_GRADIENT, Arithmetic.F16),
    ]
    assert found[1].flops == 2.5 * found[0].flops


PUBLISHED = {
    64: (335, 373, 395, 408, 412, 413),
    128: (497, 574, 617, 609, 600, 595),
    256: (470, 546, 580, 581, 580, 581),
}
"""TFLOP/s of cuDNN on an H100, forward, of 16,384 tokens of 2,048 features: by features of a head,
for 512, 1,024, .. 16,384 positions. Source: arXiv 2407.08608, figure 5."""


@pytest.mark.parametrize("width", PUBLISHED)
def test_it_is_planned_at_the_rates_that_are_published(width: int) -> None:
    for number, published in enumerate(PUBLISHED[width]):
        length = 512 << number
        q = struct(16384 // length, length, 2048 // width, width)

        def forward(q: Any) -> Any:
            return jax.nn.dot_product_attention(q, q, q, implementation="cudnn")

        seconds = autoshard.plan(forward, q, cluster="h100:1").compute_seconds
        assert 4 * 16384 * length * 2048 / seconds / 1e12 == pytest.approx(published, rel=0.17)


@pytest.mark.parametrize(
    ("shape", "heads_of_keys", "allocated"),
    [
        ((8, 2048, 32, 128), 32, 270532864),
        ((2, 8192, 32, 128), 32, 270532864),
        ((32, 512, 16, 64), 16, 68157696),
        ((8, 2048, 32, 128), 8, 538968320),
    ],
)
def test_the_gradient_needs_what_an_h200_allocated_for_it(shape, heads_of_keys, allocated) -> None:
    batch, length, _, width = shape
    keys = struct(batch, length, heads_of_keys, width)
    plan = autoshard.plan(gradients, struct(*shape), keys, cluster="h100:1")
    module = planned(plan)
    with module.context:
        forward, backward = (cudnn_attention(op) for op in calls(module))
    assert forward is not None
    assert backward is not None
    assert forward.workspace_bytes == 0
    # Pieces are of 256 bytes.
    assert backward.workspace_bytes == allocated - 256


def test_the_peak_has_a_device_s_part_of_it() -> None:
    whole, parts = (autoshard.plan(gradients, Q, Q, cluster=f"h100:{n}") for n in (1, 8))
    assert parts.summary.peak_bytes_per_device == pytest.approx(
        whole.summary.peak_bytes_per_device / 8, rel=0.02
    )
    module = planned(whole)
    with module.context:
        works = [work_of(op) for op in calls(module)]
    (scratch,) = (work.scratch_bytes for work in works if work.scratch_bytes)
    arrays = 6 * 2 * BATCH * LENGTH * HEADS * WIDTH  # queries, keys, results, their gradients
    assert whole.summary.peak_bytes_per_device > arrays + scratch


def test_the_search_cuts_it_without_a_warning(recwarn):
    plan = autoshard.plan(gradients, Q, K, cluster="h100:8")
    assert not [it for it in recwarn if issubclass(it.category, AutoshardWarning)]
    strategies = re.findall(r'fmha\w+\(.*?autoshard.strategy = "([^"]*)"', str(planned(plan)))
    assert len(strategies) == 2
    assert all(re.match(r"\[\{\w", text) for text in strategies)  # the batch


def test_the_gradient_of_a_bias_that_sequences_share_keeps_them_together():
    plan = autoshard.plan(gradients, Q, K, BIAS, cluster="h100:8")
    module = planned(plan)
    with module.context:
        for op in calls(module):
            attention = cudnn_attention(op)
            assert attention is not None
            expected = {"m"} if attention.is_backward else {"b", "m"}
            assert attention.cuttable == expected


def test_operations_are_those_of_the_matmuls():
    module = planned(autoshard.plan(gradients, Q, K, cluster="h100:8"))
    with module.context:
        forward, backward = map(cudnn_attention, calls(module))
    # The mask divides blocks of 128, which are computed whole.
    scores = BATCH * HEADS * LENGTH * (LENGTH + 128) / 2
    assert forward is not None
    assert backward is not None
    assert forward.flops == 2 * 2 * scores * WIDTH
    assert backward.flops == 5 * 2 * scores * WIDTH


def test_a_configuration_that_nobody_has_seen_is_whole_with_a_warning():
    text = """
    func.func @main(%q: tensor<8x64x4x64xbf16>) -> tensor<8x4x64x64xbf16> {
      %0:2 = stablehlo.custom_call @__cudnn$fmhaSoftmax(%q, %q, %q) {backend_config = "{}"}
        : (tensor<8x64x4x64xbf16>, tensor<8x64x4x64xbf16>, tensor<8x64x4x64xbf16>)
        -> (tensor<8x4x64x64xbf16>, tensor<0xui8>)
      return %0#0 : tensor<8x4x64x64xbf16>
    }"""
    module = parse_bytes(text.encode(), new_context(), "file")
    with pytest.warns(AutoshardWarning, match="1 kernels run whole on every device"):
        run_passes(module, ["autoshard-recursive-programming{cluster=h100:8}"])


def test_the_gpu_compiler_takes_the_parts():
    if not any(importlib.util.find_spec(f"jax_cuda{number}_plugin") for number in (12, 13)):
        pytest.skip("needs autoshard[gpu]: the compiler for GPUs")
    found = autoshard.plan(gradients, Q, K, cluster="h100:8").verify()
    assert found.ok
    assert found.estimate is not None
    assert found.estimate.flops > 7 * 2 * BATCH * HEADS * LENGTH * LENGTH / 2 * WIDTH / 8


def planned(plan: Any) -> mlir.Module:
    return parse_bytes(plan.bytecode, new_context(), "planned")
