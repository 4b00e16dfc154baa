"""``jax.shard_map`` in a program: its body stays, and what it sends is counted."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard

P = jax.sharding.PartitionSpec
MESH = "dp=2,tp=4"
X = jnp.arange(16.0 * 4).reshape(16, 4) % 7 - 3


def test_a_shard_map_over_another_mesh_is_refused() -> None:
    mesh = jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    fn = jax.shard_map(lambda x: 2 * x, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    with pytest.raises(autoshard.PlanError, match=r"jax\.shard_map in it has a mesh of its own"):
        autoshard.jit(fn, mesh=MESH)(X)
    np.testing.assert_array_equal(autoshard.jit(fn, mesh=mesh, mode="auto")(X), 2 * X)


def test_what_a_shard_map_sends_is_in_the_plan() -> None:
    def body(x: Any) -> Any:
        turned = jax.lax.ppermute(x, "tp", [(i, (i + 1) % 4) for i in range(4)])
        total = jax.lax.psum(x, "dp").sum() + jax.lax.all_gather(x, "tp").sum()
        split = jax.lax.all_to_all(x, "tp", 1, 1, tiled=True).sum()
        return turned + total + split + jax.lax.psum_scatter(x, "tp", scatter_dimension=1).sum()

    whole = P(("dp", "tp"), None)
    fn = jax.shard_map(body, in_specs=whole, out_specs=whole, check_vma=False)
    jitted = autoshard.jit(lambda x: fn(x) + 1, mesh=MESH, mode="auto")
    jitted(X)  # without a warning
    sent = [str(collective).partition(" (")[0] for collective in jitted.plan(X).collectives]
    assert sent == [
        "collective-permute over tp: 32 bytes",
        "all-reduce over dp: 32 bytes",
        "all-gather over tp: 96 bytes",
        "all-to-all over tp: 24 bytes",
        "reduce-scatter over tp: 24 bytes",
    ]
