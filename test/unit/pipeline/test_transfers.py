"""Values between stages, in one process; ``test_pipelines_of_processes`` has several."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from autoshard.errors import PlanError
from autoshard.pipeline import transfers
from autoshard.pipeline.array_parts import sharding_over_all
from autoshard.pipeline.transfers import SentValue, ToldEverywhere, check_processes, sender


def two_stages() -> list[Mesh]:
    devices: Any = np.array(jax.devices()[:4]).reshape(2, 2)
    return [Mesh(its, ("a",)) for its in devices]


def sent(shape: tuple[int, ...], spec: PartitionSpec) -> SentValue:
    origin, target = (NamedSharding(mesh, spec) for mesh in two_stages())
    return SentValue(shape, np.dtype("float32"), origin, target, is_callers=False)


def test_a_value_arrives_as_it_was() -> None:
    value, rows = sent((4, 2), PartitionSpec("a")), np.arange(8, dtype=np.float32).reshape(4, 2)
    send = sender([value])
    assert send is not None
    (found,) = send([jax.device_put(rows, value.origin)])
    assert found.sharding == value.target
    np.testing.assert_array_equal(found, rows)


def test_a_scalar_that_is_told_lies_on_all_devices_of_all_stages() -> None:
    value, (_, other) = sent((), PartitionSpec()), two_stages()
    over_all = sharding_over_all(two_stages())
    tell = ToldEverywhere([value], [other], [over_all])
    (found,) = tell([jax.device_put(np.float32(3), value.origin)])
    assert found.sharding == over_all
    assert [float(shard.data) for shard in found.addressable_shards] == [3, 3, 3, 3]


def test_a_process_without_a_stage_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_processes("step", two_stages())
    monkeypatch.setattr(transfers.jax, "process_count", lambda: 2)
    with pytest.raises(PlanError, match=r"process 1 has no device of any stage: .* has 4 of"):
        check_processes("step", two_stages())
