"""A checkpoint that was written under one plan is restored under another one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

import autoshard


def step(params, x):
    def loss(params):
        return jnp.mean((jnp.tanh(x @ params["up"]) @ params["down"] - x) ** 2)

    return jax.tree.map(lambda w, g: w - 0.1 * g, params, jax.grad(loss)(params))


def plan_on(mesh, cluster, spec):
    params = {"up": jnp.zeros((64, 128)), "down": jnp.zeros((128, 64))}
    shardings = ({"up": jax.sharding.PartitionSpec(*spec), "down": None}, None)
    return autoshard.plan(
        step, params, jnp.zeros((32, 64)), cluster=cluster, mesh=mesh, in_shardings=shardings
    )


def test_a_checkpoint_restores_under_another_plan_and_on_fewer_devices(tmp_path):
    written = plan_on("data=2,model=4", "cpu:8", (None, "model"))
    params = {
        "up": np.arange(64 * 128, dtype=np.float32).reshape(64, 128),
        "down": np.ones((128, 64), np.float32),
    }
    placed, _ = written.place(params, np.zeros((32, 64), np.float32))
    assert placed["up"].sharding.spec == jax.sharding.PartitionSpec(None, "model")
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", placed)
    read = plan_on("fsdp=4", "cpu:4", ("fsdp",))
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(tmp_path / "state", read.abstract_arguments[0])
    for name, value in params.items():
        np.testing.assert_array_equal(restored[name], value)
        assert restored[name].sharding == read.in_shardings[0][name]
    assert len(restored["up"].sharding.device_set) == 4
