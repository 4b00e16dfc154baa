"""A kernel that is cut along its grid computes what it computes whole."""

from __future__ import annotations

import json
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention
from jax.experimental.pallas.ops.tpu.splash_attention import (
    CausalMask,
    MultiHeadMask,
    make_splash_mha_single_device,
)

from autoshard.importer.kernels import kernel_cuts, kernel_rule, why_whole
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.ir.module import operations_of
from autoshard.kernels.cuts import Cut
from autoshard.kernels.mosaic import Kernel, config_on_grid, is_tpu_kernel, kernel_of
from random_kernels import RandomKernel, random_kernel


def lowered(fn: Any, *args: Any) -> mlir.Module:
    device = jax.sharding.AbstractDevice("TPU v5 lite", 1, "tpu")
    with jax.sharding.use_abstract_mesh(
        jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device)
    ):
        text = jax.jit(fn).trace(*args).lower(lowering_platforms=("tpu",)).as_text()
    return parse_bytes(text.encode(), new_context())


def kernels_in(module: mlir.Module) -> list[mlir.Operation]:
    return [op for op in operations_of(module.operation) if is_tpu_kernel(op)]


def cuts_in(op: mlir.Operation) -> tuple[Cut, ...]:
    found = kernel_cuts(op)
    return () if found is None else found[1]


def assert_cut_is_right(case: RandomKernel, kernel: Kernel, cut: Cut, parts: int) -> None:
    arguments = case.arguments(np.random.default_rng(0))
    whole = np.asarray(case.call(arguments, interpret=True))
    grid = list(kernel.grid)
    grid[cut.grid_dim] //= parts
    found = []
    for part in range(parts):
        table, *mine = [
            value if dim is None else np.split(value, parts, dim)[part]
            for value, dim in zip((case.table, *arguments), cut.dims[:-1], strict=True)
        ]
        table = np.pad(table, (0, len(case.table) - len(table)), constant_values=-1)
        shape = list(whole.shape)
        assert cut.dims[-1] is not None
        shape[cut.dims[-1]] //= parts
        found.append(case.call(mine, tuple(grid), tuple(shape), table, interpret=True))
    np.testing.assert_array_equal(np.concatenate(found, cut.dims[-1]), whole)


WITH_TABLES = (135, 231, 256)
"""Seeds of kernels whose tables are cut as well; some others' may be, too."""


@pytest.mark.parametrize("seed", [*range(8), *WITH_TABLES])
def test_what_is_derived_of_a_random_kernel_is_right(seed: int) -> None:
    case = random_kernel(np.random.default_rng(seed))
    module = lowered(case.call, case.arguments(np.random.default_rng(0)))
    (op,) = kernels_in(module)
    kernel = kernel_of(op)
    assert kernel is not None
    assert kernel.grid == case.grid
    cuts = cuts_in(op)
    assert seed not in WITH_TABLES or any(cut.dims[0] is not None for cut in cuts)
    for cut in cuts:
        units = kernel.grid[cut.grid_dim] // cut.unit
        for parts in (n for n in range(2, units + 1) if units % n == 0):
            assert_cut_is_right(case, kernel, cut, parts)


QUERIES = jax.ShapeDtypeStruct((4, 8, 512, 128), jnp.bfloat16)
"""Batch, heads, sequence, features."""


def flash_loss(causal: bool) -> Any:
    return lambda q: flash_attention(q, q, q, causal=causal).sum().astype(jnp.float32)


@pytest.mark.parametrize(
    ("causal", "forward"),
    [
        (False, [(0, 0), (1, 1), (2, 2)]),
        # Where a block of keys is masked, another one is fetched: it depends on two dims.
        (True, [(0, 0), (1, 1)]),
    ],
)
def test_flash_attention_is_cut_along_batch_and_heads(
    causal: bool, forward: list[tuple[int, int]]
) -> None:
    module = lowered(jax.grad(flash_loss(causal)), QUERIES)
    found = [cuts_in(op) for op in kernels_in(module)]
    assert len(found) == 3
    assert [(cut.grid_dim, cut.dims[-1]) for cut in found[0]] == forward
    for cuts in found:
        assert all(cut.unit == 1 for cut in cuts)
        assert {cut.dims[0] for cut in cuts} >= {0, 1}


def splash_loss(q: Any, k: Any, v: Any) -> Any:
    mask = MultiHeadMask([CausalMask((512, 512))] * q.shape[1])
    attend = make_splash_mha_single_device(mask)
    return jax.vmap(attend)(q, k, v).sum().astype(jnp.float32)


def test_splash_attention_is_cut_along_batch_groups_of_heads_and_blocks() -> None:
    keys = jax.ShapeDtypeStruct((4, 2, 512, 128), jnp.bfloat16)
    module = lowered(jax.grad(splash_loss, argnums=(0, 1, 2)), QUERIES, keys, keys)
    ops = kernels_in(module)
    assert len(ops) == 3
    for op in ops:
        kernel = kernel_of(op)
        assert kernel is not None
        batch, heads, *blocks = sorted(cuts_in(op), key=lambda cut: cut.grid_dim)
        assert (batch.unit, heads.unit) == (1, 4)
        # Queries, keys and values stand behind the tables.
        assert batch.dims[:5] == (None, None, 0, 0, 0)
        assert heads.dims[:5] == (None, None, 1, 1, 1)
        assert kernel.grid[heads.grid_dim] == 8
        rule = kernel_rule(op)
        assert rule is not None
        assert [factor.size for factor in rule.factors[:2]] == [4, 2]
        # The gradient of keys and values compares the block's own place with the queries'.
        assert len(blocks) == (0 if kernel.name.startswith("splash_mha_dkv") else 1)
        for cut in blocks:  # of queries, with their rows of the tables
            assert (cut.unit, cut.dims[:5]) == (1, (1, 1, 2, None, None))
            shares = rule.factors[2].shares
            np.testing.assert_allclose(shares, [0.1, 0.2, 0.3, 0.4])


def test_a_smaller_grid_is_all_that_changes() -> None:
    module = lowered(flash_loss(causal=False), QUERIES)
    (op,) = kernels_in(module)
    kernel = kernel_of(op)
    assert kernel is not None
    before = json.loads(mlir.StringAttr(op.attributes["backend_config"]).value)
    text = config_on_grid(op, (2, *kernel.grid[1:]))
    after = json.loads(text)
    flops = [config["custom_call_config"]["cost_estimate"]["flops"] for config in (before, after)]
    assert flops[1] == flops[0] // 2
    with op.context:
        op.attributes["backend_config"] = mlir.StringAttr.get(text)
    smaller = kernel_of(op)
    assert smaller is not None
    assert smaller.grid == (2, *kernel.grid[1:])
    assert smaller.windows[0] is not None
    assert kernel.windows[0] is not None
    assert smaller.windows[0].block == kernel.windows[0].block
    assert len(str(smaller.module)) == len(str(kernel.module))


def _copied(x: Any, y: Any) -> None:
    y[...] = x[...]


def _added(x: Any, y: Any) -> None:
    y[...] += x[...]


def _numbered(x: Any, y: Any) -> None:
    y[...] = x[...] * pl.program_id(0).astype(jnp.float32)


@pytest.mark.parametrize(
    ("body", "places", "written", "said"),
    [
        (_copied, 4, lambda i: (i, 0), "blocks fill 512 of 1,024 along dim 0 of operand 0"),
        (_added, 8, lambda _: (0, 0), "all its places write the same blocks of result 0"),
        (_numbered, 8, lambda i: (i, 0), "the body computes with its place along it"),
        (_copied, 8, lambda i: (7 - i, 0), "not in steps of one, in what says the block of result"),
        (_copied, 1, lambda i: (i, 0), "its grid has one place"),
    ],
)
def test_what_may_not_be_cut_says_why(body: Any, places: int, written: Any, said: str) -> None:
    def call(x: Any) -> Any:
        read = pl.BlockSpec((128, 128), lambda i: (i, 0))
        return pl.pallas_call(
            body,
            grid=(places,),
            in_specs=[read],
            out_specs=pl.BlockSpec((128, 128), written),
            out_shape=x,
        )(x)

    module = lowered(call, jax.ShapeDtypeStruct((1024, 128), jnp.float32))
    (op,) = kernels_in(module)
    assert said in why_whole(op)


def test_a_kernel_that_cannot_be_read_has_no_cuts() -> None:
    module = lowered(flash_loss(causal=False), QUERIES)
    (op,) = kernels_in(module)
    with op.context:
        op.attributes["backend_config"] = mlir.StringAttr.get(
            '{"custom_call_config": {"body": "bm90IGEga2VybmVs"}}'
        )
    assert kernel_cuts(op) is None
    assert kernel_rule(op) is None
    assert re.search(r"jaxlib [\d.]+ cannot read its Mosaic module; plan with", why_whole(op))
    with op.context:
        op.attributes["backend_config"] = mlir.StringAttr.get("{}")
    assert why_whole(op) == "its call holds no Mosaic module"
