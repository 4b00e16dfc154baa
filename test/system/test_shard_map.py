"""Meshes in a program: they are the plan's, and what ``jax.shard_map`` sends is counted."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.splash_attention import (
    CausalMask,
    MultiHeadMask,
    make_splash_mha_single_device,
)
from jax.experimental.xla_metadata import set_xla_metadata

import autoshard
from autoshard.ir import new_context, parse_bytes
from autoshard.passes.pipeline import run_passes

P = jax.sharding.PartitionSpec
MESH = "dp=2,tp=4"
X = jnp.arange(16.0 * 4).reshape(16, 4) % 7 - 3


def auto_mesh(devices: Any, name: str) -> jax.sharding.Mesh:
    return jax.sharding.Mesh(devices, (name,), axis_types=(jax.sharding.AxisType.Auto,))


TURNED = auto_mesh(np.array(jax.devices())[::-1], "i")
OF_OTHER_MESHES = {
    "shard_map": jax.shard_map(
        lambda x: 2 * x,
        mesh=auto_mesh(np.array(jax.devices()), "i"),
        in_specs=P("i"),
        out_specs=P("i"),
    ),
    "shard_map without a mesh": jax.shard_map(lambda x: 2 * x, in_specs=P("i"), out_specs=P("i")),
    "spec": lambda x: jax.lax.with_sharding_constraint(2 * x, P("i")),
    "devices": lambda x: jax.lax.with_sharding_constraint(
        2 * x, jax.sharding.NamedSharding(TURNED, P("i"))
    ),
}


ON_A_MESH, ANYWHERE = {"mesh": MESH, "mode": "auto"}, {"cluster": "cpu:8"}


@pytest.mark.parametrize(
    ("name", "where"),
    [
        *((name, ON_A_MESH) for name in OF_OTHER_MESHES),
        # Where no mesh is given, that of a shard_map is the plan's.
        *((name, ANYWHERE) for name in OF_OTHER_MESHES if name != "shard_map"),
    ],
)
def test_another_mesh_is_refused(name: str, where: Any) -> None:
    fn = OF_OTHER_MESHES[name]
    with pytest.raises(
        autoshard.PlanError, match=r"(?s)for another mesh than the plan.*mesh: mesh=\."
    ):
        autoshard.jit(fn, **where)(X)
    mesh = TURNED if name == "devices" else auto_mesh(np.array(jax.devices()), "i")
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


def test_rows_sent_to_their_experts_are_in_the_plan() -> None:
    """How many are sent to whom is known at run time; all rows of a device count, evenly."""

    def send(rows: Any, room: Any, numbers: Any) -> Any:
        sizes = (numbers,) * 4
        return jax.lax.ragged_all_to_all(rows, room, *sizes, axis_name="tp")

    spec = P(("dp", "tp"))
    fn = jax.shard_map(send, in_specs=(spec,) * 3, out_specs=spec, check_vma=False)
    rows = jax.ShapeDtypeStruct((8 * 4096, 1024), jnp.bfloat16)
    room = jax.ShapeDtypeStruct((8 * 16384, 1024), jnp.bfloat16)
    numbers = jax.ShapeDtypeStruct((8 * 4,), jnp.int32)
    plan = autoshard.plan(fn, rows, room, numbers, mesh=MESH, mode="auto", cluster="h100:8")
    (collective,) = plan.summary.collectives
    sent = 3 / 4 * 4096 * 1024 * 2
    assert (collective.kind, collective.axes, collective.bytes) == ("all-to-all", ("tp",), sent)
    assert sent / 450e9 < (collective.seconds or 0.0) < 3 * sent / 450e9


def test_axes_of_one_device_are_no_part_of_what_a_shard_map_sends() -> None:
    types = (jax.sharding.AxisType.Auto,) * 3
    mesh = jax.make_mesh((1, 8, 1), ("data", "fsdp", "expert"), types)

    def body(x: Any) -> Any:
        return jax.lax.psum(jax.lax.psum(x, ("data", "fsdp", "expert")) * 2, "expert")

    fn = jax.shard_map(body, mesh=mesh, in_specs=P("fsdp"), out_specs=P(), check_vma=False)
    x = jax.ShapeDtypeStruct((4096, 1024), jnp.float32)
    plan = autoshard.plan(fn, x, mesh=mesh, mode="auto", cluster="h100:8")
    (collective,) = plan.summary.collectives
    assert (collective.kind, collective.axes) == ("all-reduce", ("fsdp",))


def test_functions_that_a_shard_map_calls_are_in_the_seconds() -> None:
    @jax.jit
    def inner(x: Any, w: Any) -> Any:
        return jnp.tanh(jnp.sort(x @ w))

    def body(x: Any, w: Any) -> Any:
        with set_xla_metadata(why="this call is not inlined"):
            made = inner(x + 1, w)
        return made @ w

    x = jax.ShapeDtypeStruct((4096, 1024), jnp.bfloat16)
    w = jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16)
    fn = jax.shard_map(body, in_specs=(P("dp"), P()), out_specs=P("dp"), check_vma=False)
    plan = autoshard.plan(fn, x, w, mesh=MESH, mode="auto", cluster="h100:8")
    flops = 2 * 2 * 2048 * 1024 * 1024
    assert flops / 989e12 < plan.compute_seconds < 10 * flops / 989e12


def test_what_a_shard_map_needs_while_it_runs_is_in_the_memory() -> None:
    def body(x: Any, w: Any) -> Any:
        scores = jnp.sort(jnp.sin(x @ w), axis=1)
        return jnp.sort(scores / jnp.sum(scores), axis=1) @ w.T

    def step(x: Any, w: Any) -> Any:
        x = jnp.sort(x, axis=1)
        for _ in range(3):
            x = jax.shard_map(body, in_specs=(P("dp"), P()), out_specs=P("dp"))(x, w)
        return x

    x = jax.ShapeDtypeStruct((8192, 1024), jnp.float32)
    w = jax.ShapeDtypeStruct((1024, 8192), jnp.float32)
    plan = autoshard.plan(step, x, w, mesh=MESH, mode="auto", cluster="cpu:8")
    scores = 4096 * 8192 * 4
    held = 4096 * 1024 * 4 + 1024 * 8192 * 4
    assert held + 2 * scores <= plan.peak_bytes <= 1.3 * (held + 2 * scores)
    asked: Any = {"mesh": MESH, "mode": "auto", "cluster": "cpu:8"}
    with pytest.raises(autoshard.DoesNotFitError):
        autoshard.plan(step, x, w, memory_limit=held + scores, **asked)


def test_a_mask_is_known_inside_of_a_shard_map() -> None:
    heads, length = 4, 4096
    mask = MultiHeadMask([CausalMask((length, length))] * heads)
    kernel = make_splash_mha_single_device(mask)

    def attend(kernel: Any, q: Any, k: Any, v: Any) -> Any:
        return jax.vmap(kernel)(q, k, v)

    def mapped(q: Any, k: Any, v: Any) -> Any:
        specs = jax.tree.map(lambda _: P(), kernel), P("dp"), P("dp"), P("dp")
        inside = jax.shard_map(attend, in_specs=specs, out_specs=P("dp"), check_vma=False)
        return inside(kernel, q, k, v)

    given = [jax.ShapeDtypeStruct((2, heads, length, 128), jnp.bfloat16)] * 3
    asked: Any = {"mesh": "dp=2", "mode": "auto", "cluster": "v5e:1x2"}
    plans = [autoshard.plan(fn, *given, **asked) for fn in (mapped, partial(attend, kernel))]
    seconds = [plan.compute_seconds for plan in plans]
    assert seconds[0] == pytest.approx(seconds[1], rel=0.05)


@pytest.mark.parametrize("layers", [1, 8])
def test_what_a_shard_map_computes_and_sends_is_in_the_seconds(layers: int, tmp_path: Path) -> None:
    def body(x: Any, w: Any) -> Any:
        return jax.lax.psum(jax.nn.relu(x @ w) @ w.T, "tp")

    def step(x: Any, weights: Any) -> Any:
        specs = P("dp", None), P(None, "tp")
        layer = jax.shard_map(body, in_specs=specs, out_specs=specs[0], check_vma=False)
        return jax.lax.scan(lambda x, w: (layer(x, w) + 1, None), x, weights)[0]

    x = jax.ShapeDtypeStruct((4096, 1024), jnp.bfloat16)
    weights = jax.ShapeDtypeStruct((layers, 1024, 4096), jnp.bfloat16)
    plan = autoshard.plan(step, x, weights, mesh=MESH, mode="auto", cluster="h100:8")
    flops = layers * 2 * 2 * 4096 * 1024 * 4096 / 8
    assert flops / 989e12 < plan.compute_seconds < 5 * flops / 989e12
    (collective,) = plan.summary.collectives
    sent = 2 * 3 / 4 * 2048 * 1024 * 2
    assert (collective.kind, collective.axes, collective.times) == ("all-reduce", ("tp",), layers)
    assert collective.bytes == sent
    assert collective.seconds is not None
    assert layers * sent / 450e9 < collective.seconds < 3 * layers * sent / 450e9
    assert plan.summary.step_seconds == pytest.approx(
        plan.compute_seconds + plan.summary.communication_seconds
    )
    assert plan.summary.gap == pytest.approx(0, abs=1e-6)
    module = parse_bytes(plan.bytecode, new_context(), "planned")
    run_passes(module, [f"autoshard-print-costs{{cluster=h100:8 file={tmp_path / 'costs'}}}"])
    said = re.search(
        r"shard_map, in no row below: (.*) of compute", (tmp_path / "costs").read_text()
    )
    assert said is not None
    assert said[1] != "0 ns"
