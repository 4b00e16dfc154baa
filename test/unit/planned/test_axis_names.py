"""What the axes of a plan are said to be for, and where devices are."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.cluster.devices import devices_of, physical_place
from autoshard.errors import PassOptionError
from autoshard.passes.memory_limit import read_bytes_text

PartitionSpec = jax.sharding.PartitionSpec


def type_of(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def roles(fn, *args, pins):
    """Axis -> what it is said to cut, when all arguments are pinned."""
    plan = autoshard.plan(fn, *args, cluster="v5e:2x4", mesh="a=2,b=4", in_shardings=pins)
    return {axis.name: axis.role for axis in plan.summary.axes}


def step(weights, x):
    return jax.tree.map(
        lambda w, g: w - g, weights, jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w["up"])))(weights)
    )


WEIGHTS = {"up": type_of(64, 256), "other": type_of(8)}


def test_batch_and_columns():
    weights = {"up": PartitionSpec(None, "b"), "other": PartitionSpec()}
    assert roles(step, WEIGHTS, type_of(4096, 64), pins=(weights, PartitionSpec("a"))) == {
        "a": "batch",
        "b": "columns or rows of matmuls and parameters",
    }


def test_batch_and_parameters_is_fully_sharded_data_parallelism():
    weights = {"up": PartitionSpec("a"), "other": PartitionSpec()}
    found = roles(step, WEIGHTS, type_of(4096, 64), pins=(weights, PartitionSpec(("a", "b"))))
    assert found == {"a": "batch and parameters", "b": "batch"}


def test_second_dim_of_ids_is_the_sequence():
    def look_up(weights, ids):
        return jax.tree.map(lambda w: w * 2, weights), weights["table"][ids]

    weights = {"table": type_of(64, 32), "other": type_of(8)}
    pins = ({"table": PartitionSpec(), "other": PartitionSpec()}, PartitionSpec("a", "b"))
    ids = type_of(8, 64, dtype=jnp.int32)
    assert roles(look_up, weights, ids, pins=pins) == {"a": "batch", "b": "sequence"}


def test_batch_dims_of_matmuls_with_parameters_are_experts():
    def experts(weights, x):
        y = jnp.einsum("ecd,edf->ecf", jnp.broadcast_to(x, (8, *x.shape)), weights["up"])
        return jax.tree.map(lambda w: w * 2, weights), y

    weights = {"up": type_of(8, 64, 128), "other": type_of(8)}
    pins = (
        {"up": PartitionSpec("b"), "other": PartitionSpec()},
        PartitionSpec(None, "a"),
    )
    found = roles(experts, weights, type_of(512, 64), pins=pins)
    assert found["b"] == "batch dims of matmuls and parameters"


def test_axes_of_a_decode_step_are_of_its_parameters_and_not_of_its_input():
    """The cache is what it returns: its parameters are no data of one call."""

    def decode(params, cache, ids):
        query = (params["table"][ids] @ params["query"]).reshape(8, 4, 16)
        cache = {
            name: jnp.concatenate([kept[:, :, 1:], query[:, :, None]], axis=2)
            for name, kept in cache.items()
        }
        scores = jax.nn.softmax(jnp.einsum("bhd,bhsd->bhs", query, cache["keys"]))
        found = jnp.einsum("bhs,bhsd->bhd", scores, cache["values"]).reshape(8, 64)
        return cache, jnp.argmax(found @ params["out"], axis=-1)

    params = {"table": type_of(512, 32), "query": type_of(32, 64), "out": type_of(64, 512)}
    pins = (
        {"table": None, "query": PartitionSpec(None, "b"), "out": PartitionSpec("b")},
        PartitionSpec("a", "b"),
        PartitionSpec("a"),
    )
    cache = dict.fromkeys(("keys", "values"), type_of(8, 4, 128, 16))
    assert roles(decode, params, cache, type_of(8, dtype=jnp.int32), pins=pins) == {
        "a": "batch",
        "b": "columns or rows of matmuls and parameters",
    }


@dataclass(frozen=True)
class Tpu:
    id: int
    coords: tuple[int, int, int]
    core_on_chip: int = 0
    slice_index: int = 0
    process_index: int = 0


@dataclass(frozen=True)
class Gpu:
    id: int
    process_index: int


def test_tpus_are_ordered_by_slice_and_place():
    # JAX counts x fastest; a cluster has its first dim slowest.
    devices = [Tpu(n, (n % 2, n // 2 % 2, 0), slice_index=n // 4) for n in range(8)]
    ordered = sorted(devices, key=physical_place)
    assert [device.id for device in ordered] == [0, 2, 1, 3, 4, 6, 5, 7]


def test_gpus_are_ordered_by_process():
    devices = [Gpu(0, 1), Gpu(1, 0), Gpu(2, 1), Gpu(3, 0)]
    assert [d.id for d in sorted(devices, key=physical_place)] == [1, 3, 0, 2]


def test_devices_of_another_kind_are_none():
    assert devices_of(autoshard.Cluster.parse("v5e:2x4")) is None
    assert len(devices_of(autoshard.Cluster.parse("cpu:8"))) == 8


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1024", 1024),
        ("14GiB", 14 * 2**30),
        ("16 GB", 16e9),
        ("16e9", 16e9),
        ("1.5MiB", 1.5 * 2**20),
    ],
)
def test_bytes_are_read_with_units(text, size):
    assert read_bytes_text(text, "x") == size


def test_other_units_are_refused():
    with pytest.raises(PassOptionError, match=r"x=3 miles: expected bytes"):
        read_bytes_text("3 miles", "x")
