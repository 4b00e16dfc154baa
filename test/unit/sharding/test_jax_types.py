"""Conversions to and from JAX's types, with as many devices as the tests' process has."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import pytest
from hypothesis import given, settings
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
from sharding_cases import shardings

from autoshard.errors import ShardingError
from autoshard.sharding import (
    Mesh,
    Sharding,
    from_named_sharding,
    from_partition_spec,
    to_named_sharding,
    to_partition_spec,
)

DP2_TP4 = Mesh.parse("dp=2,tp=4")
P = PartitionSpec


def test_jax_is_imported_only_when_needed() -> None:
    code = (
        "import sys, autoshard.sharding, autoshard.frontend.layout; assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("[{dp}, {}]", P("dp", None)),
        ("[{}, {tp, dp}]", P(None, ("tp", "dp"))),
        ("[{?}, {dp}]", P(P.UNCONSTRAINED, "dp")),
        ("[]", P()),
        ("[{dp}] unreduced={tp}", P("dp", unreduced={"tp"})),
    ],
)
def test_a_partition_spec_says_the_same(text: str, spec: PartitionSpec) -> None:
    sharding = Sharding.parse(text, DP2_TP4)
    assert to_partition_spec(sharding) == spec
    assert from_partition_spec(spec, DP2_TP4, sharding.rank) == sharding


@settings(max_examples=100, deadline=None)
@given(shardings(sub_axes=False, extras=False))
def test_partition_specs_lose_nothing(sharding: Sharding) -> None:
    spec = to_partition_spec(sharding)
    assert from_partition_spec(spec, sharding.mesh, sharding.rank) == sharding


def test_missing_entries_of_a_partition_spec_are_not_split() -> None:
    assert str(from_partition_spec(P("dp"), DP2_TP4, 3)) == "[{dp}, {}, {}]"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (P("dp", None, None), "has 3 entries, but the value has 2 dims"),
        (P("x"), 'axis "x" is not an axis of mesh "dp=2,tp=4"'),
    ],
)
def test_a_wrong_partition_spec_is_an_error(spec: PartitionSpec, message: str) -> None:
    with pytest.raises(ShardingError, match=message):
        from_partition_spec(spec, DP2_TP4, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[{tp:(1)2}]", r"uses the sub-axis tp:\(1\)2, .* with_whole_axes"),
        ("[{tp, ?}]", "dim 0 .* is cut and open, .*with_dims_closed"),
        ("[{}] manual={dp}", "manual axes, .*shard_map"),
    ],
)
def test_what_a_partition_spec_cannot_say_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ShardingError, match=message):
        to_partition_spec(Sharding.parse(text, DP2_TP4))


def test_a_named_sharding_and_back() -> None:
    device = jax.devices()[:1]
    sharding = Sharding.named(Mesh.parse("dp=1,tp=1"), "tp", None)
    named = to_named_sharding(sharding, sharding.mesh.to_jax(device))
    assert named.spec == P("tp", None)
    assert from_named_sharding(named, 2) == sharding


def test_an_abstract_mesh_has_names_and_sizes_but_no_devices() -> None:
    abstract = AbstractMesh((2, 4), ("dp", "tp"))
    assert Mesh.from_jax(abstract) == DP2_TP4
    assert str(from_named_sharding(NamedSharding(abstract, P("tp")), 1)) == "[{tp}]"
    with pytest.raises(ShardingError, match="an abstract mesh has no devices"):
        Mesh.from_jax(abstract, jax.devices())


def test_a_jax_mesh_with_other_axes_is_an_error() -> None:
    jax_mesh = Mesh.parse("x=1").to_jax(jax.devices()[:1])
    with pytest.raises(ShardingError, match='is on mesh "dp=2,tp=4", but the JAX mesh is "x=1"'):
        to_named_sharding(Sharding.named(DP2_TP4, "dp"), jax_mesh)


def test_too_few_devices_is_an_error_that_says_how_to_get_more() -> None:
    with pytest.raises(ShardingError, match=r"needs 8 devices, but there are 1\. .*device_count=8"):
        DP2_TP4.to_jax(jax.devices()[:1])


def test_devices_are_numbered_by_the_assignment_of_the_program() -> None:
    """On 8 devices, in a process of its own."""
    code = """
import jax
from autoshard.sharding import Mesh
devices = jax.devices()
mesh = Mesh.parse("a=2,b=2 device_ids=0,3,1,2")
turned = mesh.to_jax(devices)
assert [d.id for d in turned.devices.flat] == [0, 3, 1, 2], turned
assert all(kind == jax.sharding.AxisType.Auto for kind in turned.axis_types)
assert Mesh.from_jax(turned, devices[:4]) == mesh
assert Mesh.from_jax(turned) == Mesh.parse("a=2,b=2")
try:
    Mesh.from_jax(turned, devices[4:])
except ValueError as error:
    assert "is not among the 4 devices of the program" in str(error)
else:
    raise AssertionError
"""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **flags})
