"""Programs are lowered for the devices of the cluster, also where none of them is."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

import autoshard

QUERIES = jax.ShapeDtypeStruct((8, 4, 512, 128), jnp.bfloat16)
"""Batch, heads, sequence, features."""


def attend(q: Any) -> Any:
    return flash_attention(q, q, q, causal=True)


def test_a_kernel_of_tpus_is_planned_without_one_and_cut() -> None:
    plan = autoshard.plan(attend, QUERIES, cluster="v5e:4x4")
    (argument,) = plan.arguments
    assert argument.sharding.tile[:2] in ((8, 2), (4, 4))
    assert plan.collectives == ()


@pytest.mark.parametrize("form", ["shardy", "gspmd"])
def test_each_device_runs_its_part_of_the_grid(form: str) -> None:
    plan = autoshard.plan(
        jax.grad(lambda q: attend(q).sum().astype(jnp.float32)),
        QUERIES,
        cluster="v5e:4x4",
    )
    text = str(plan.exported(f"autoshard-export-{form}"))
    kernels = [line for line in text.splitlines() if "@tpu_custom_call" in line]
    assert len(kernels) == 3
    batch, heads, *_ = plan.arguments[0].sharding.local_shape(QUERIES.shape)
    for line in kernels:
        assert f"tensor<{batch}x{heads}x512x128xbf16>" in line
        assert "tensor<8x4x" not in line


def squared(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * x_ref[...]


def test_a_kernel_asks_for_the_device_of_the_cluster() -> None:
    kinds: list[str] = []

    def fn(x: Any) -> Any:
        kinds.append(jax.sharding.get_abstract_mesh().abstract_device.device_kind)
        spec = pl.BlockSpec((1, 128, 128), lambda i: (i, 0, 0))
        return pl.pallas_call(
            squared,
            grid=(8,),
            in_specs=[spec],
            out_specs=spec,
            out_shape=x,
            compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
        )(x)

    plan = autoshard.plan(fn, jax.ShapeDtypeStruct((8, 128, 128), jnp.float32), cluster="v6e:2x4")
    assert kinds[0] == "TPU v6 lite"
    assert plan.arguments[0].sharding.tile == (8, 1, 1)


def test_what_insists_on_a_device_is_an_error_with_a_way_out() -> None:
    def fn(q: Any) -> Any:
        return q * len(jax.devices("cuda"))

    with pytest.raises(autoshard.PlanError, match=r"for cuda here.*autoshard-opt"):
        autoshard.plan(fn, QUERIES, cluster="h100:8")


def test_a_kernel_of_tpus_cannot_be_lowered_for_gpus() -> None:
    with pytest.raises(autoshard.PlanError, match="cannot be lowered for cuda"):
        autoshard.plan(attend, QUERIES, cluster="h100:8")


def test_devices_that_are_here_are_given_as_they_are() -> None:
    assert autoshard.devices("cpu:8") == jax.devices()


@pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu, which describes TPUs, is missing")
def test_devices_that_are_not_here_make_a_mesh() -> None:
    mesh = jax.sharding.Mesh(np.reshape(autoshard.devices("v6e:2x4"), (2, 4)), ("x", "y"))
    step = autoshard.jit(attend, mesh=mesh, cluster="v6e:2x4")
    cut = step.plan(QUERIES).arguments[0].sharding
    compiled = step.lower(QUERIES).compile().as_text() or ""
    assert cut.tile[:2] in ((2, 4), (8, 1), (4, 2))
    batch, heads, *_ = cut.local_shape(QUERIES.shape)
    assert f"bf16[{batch},{heads},512,128]" in compiled
    assert "custom-call" in compiled
    assert "all-gather" not in compiled


def test_a_kernel_that_stays_whole_is_said_with_its_cost() -> None:
    def fn(x: Any) -> Any:
        spec = pl.BlockSpec((1, 128, 128), lambda i: (7 - i, 0, 0))
        return pl.pallas_call(squared, grid=(8,), in_specs=[spec], out_specs=spec, out_shape=x)(x)

    x = jax.ShapeDtypeStruct((8, 128, 128), jnp.float32)
    said = (
        r"(?s)test_lowered_for_cluster.py:\d+.*1 kernels run whole on every device, .*: along dim 0"
        " of its grid, of 8 places, it is not alone, or not in steps of one, in what says the block"
        " of operand 0. Say how"
    )
    with pytest.warns(autoshard.AutoshardWarning, match=said):
        plan = autoshard.plan(fn, x, cluster="v5e:2x2")
    assert plan.arguments[0].sharding.tile == (1, 1, 1)


@pytest.mark.parametrize("cluster", ["v5e:4x4", "h100:8"])
def test_calls_into_python_are_planned_where_no_device_is(cluster: str) -> None:
    def fn(x: Any) -> Any:
        jax.debug.print("largest {}", x.max())
        y = jax.pure_callback(np.sin, x, x)
        return io_callback(np.cos, x, y) @ x

    plan = autoshard.plan(fn, jax.ShapeDtypeStruct((256, 256), jnp.float32), cluster=cluster)
    assert [op.name for op in plan.ops].count("xla_ffi_python_cpu_callback") == 2
