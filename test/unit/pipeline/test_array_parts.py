"""Arrays that lie on several stages, and their parts."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from autoshard.errors import PlanError
from autoshard.pipeline.array_parts import joined, joined_sharding, parts_of

ROWS = np.arange(32, dtype=np.float32).reshape(4, 8)


def two_stages() -> list[NamedSharding]:
    devices = np.array(jax.devices()[:4]).reshape(2, 2)
    return [NamedSharding(Mesh(its, ("a",)), PartitionSpec(None, "a")) for its in devices]


def test_an_array_is_its_parts_and_they_are_the_array() -> None:
    stages = two_stages()
    whole = jax.device_put(ROWS, joined_sharding(stages, 2, 0))
    parts = parts_of(whole, (2, 8), stages)
    assert [part.sharding for part in parts] == stages
    np.testing.assert_array_equal(parts[1], ROWS[2:])
    again = joined(parts, (4, 8), whole.sharding)
    np.testing.assert_array_equal(again, ROWS)
    buffers = [
        [shard.data.unsafe_buffer_pointer() for shard in a.addressable_shards]
        for a in (whole, again)
    ]
    assert buffers[0] == buffers[1], "nothing is copied"


def test_an_array_that_lies_elsewhere_is_refused() -> None:
    there = jax.device_put(ROWS, two_stages()[0])
    with pytest.raises(PlanError, match=r"shape \(4, 8\) has parts on .*2.* by the plan, and lies"):
        parts_of(there, (2, 8), two_stages())
