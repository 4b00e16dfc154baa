"""``shard_map`` over a mesh of one device means nothing, and is planned like any other code."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equivalence import shardy, unsharded

import autoshard
from autoshard.ir import new_context, parse_bytes
from autoshard.passes.pipeline import parse_pipeline, run_passes

P = jax.sharding.PartitionSpec
X = np.random.default_rng(0).integers(-3, 4, (16, 32)).astype(np.float32)


def mesh_of_one() -> jax.sharding.Mesh:
    types = (jax.sharding.AxisType.Auto,) * 2
    return jax.make_mesh((1, 1), ("fsdp", "tensor"), types, devices=jax.devices()[:1])


def body(x: Any) -> Any:
    place = jax.lax.axis_index("fsdp").astype(jnp.float32)
    summed = jax.lax.psum(x * 2, "fsdp") + jax.lax.all_gather(x, "tensor", axis=0, tiled=True)
    return jax.lax.ppermute(summed, "fsdp", [(0, 0)]) + place


def fn(x: Any) -> Any:
    mapped = jax.shard_map(
        body, mesh=mesh_of_one(), in_specs=P("fsdp", "tensor"), out_specs=P("fsdp"), check_vma=False
    )
    return jnp.tanh(mapped(x)).sum(1)


@pytest.mark.parametrize("use_shardy", [True, False], ids=["shardy", "gspmd"])
def test_it_is_cut_and_right(use_shardy: bool) -> None:
    with shardy(use_shardy):
        step = autoshard.jit(fn, mesh="d=8", mode="semi_auto", in_shardings=P("d"))
        found = step(X)
        np.testing.assert_allclose(found, unsharded(fn, (X,)), rtol=1e-6)
        (argument,) = step.plan(X).arguments
    assert argument.sharding.tile == (8, 1)


def test_it_is_lowered_for_devices_that_are_not_here() -> None:
    plan = autoshard.plan(fn, X, cluster="v5e:2x2")
    assert plan.arguments[0].sharding.tile == (4, 1)


def test_nothing_of_it_is_left_in_a_file() -> None:
    text = jax.jit(fn).lower(X).as_text()
    assert "stablehlo.all_reduce" in text
    module = parse_bytes(text.encode(), new_context())
    run_passes(module, parse_pipeline("builtin.module(autoshard-plan{cluster=cpu:8})"))
    assert not any(
        name in str(module) for name in ("all_reduce", "all_gather", "collective_permute")
    )


def test_nothing_of_it_is_left_where_a_larger_mesh_was_written_into_the_file() -> None:
    text = jax.jit(fn).lower(X).as_text()
    argument = "%arg0: tensor<16x32xf32>"
    assert argument in text
    marked = f'{argument} {{sdy.sharding = #sdy.sharding<@by_hand, [{{"d"}}, {{}}]>}}'
    mesh = '\n  sdy.mesh @by_hand = <["d"=8]>\n'
    text = text.replace(argument, marked, 1).replace("\n", mesh, 1)
    module = parse_bytes(text.encode(), new_context())
    run_passes(module, parse_pipeline("builtin.module(autoshard-plan{cluster=cpu:8})"))
    assert "all_reduce" not in str(module)


def test_a_mesh_of_several_devices_is_refused() -> None:
    types = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((2,), ("other",), types, devices=jax.devices()[:2])

    def other(x: Any) -> Any:
        return jax.shard_map(lambda a: a * 2, mesh=mesh, in_specs=P("other"), out_specs=P("other"))(
            x
        )

    with pytest.raises(autoshard.PlanError, match="for another mesh than the plan"):
        autoshard.plan(other, X, mesh="d=8", mode="semi_auto", in_shardings=P("d"))
