"""What the bench of steps in less memory than they take tells of one small program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
import tanh_layers

from bench.common.sources import Lowered, lowered
from bench.quality import memory


def _small(name: str) -> Lowered:
    assert name == "small"
    weights = [jax.ShapeDtypeStruct((256, 256), jnp.float32)] * 6
    x = jax.ShapeDtypeStruct((4096, 256), jnp.float32)
    return lowered(tanh_layers.step, ["params", "batch"], (weights, x))


def test_a_step_that_does_not_fit_is_measured_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The activation is so much wider than all else that it cannot go."""

    def step(weight: Any, x: Any) -> Any:
        def loss(weight: Any) -> Any:
            return jnp.sum(jnp.sin(x @ weight) @ weight.T)

        return weight - jax.grad(loss)(weight)

    def wide(name: str) -> Lowered:
        weight = jax.ShapeDtypeStruct((64, 8192), jnp.float32)
        return lowered(
            step, ["params", "batch"], (weight, jax.ShapeDtypeStruct((4096, 64), jnp.float32))
        )

    monkeypatch.setattr(memory, "of_corpus", wide)
    found = memory.measure("wide", "v5e:1x1", (0.6,), memory.WAYS, compiles=False)
    (row,) = found["rows"]
    assert "refused" in row[memory.TOGETHER]
    assert row[memory.PARTS]["parts"] > 1
    assert row[memory.PARTS]["peak"] <= 0.6
    ((*cells, note),) = memory.cells({**found, "model": "wide", "cluster": "v5e:1x1"})
    assert cells[memory.HEADS.index("parts")] == str(row[memory.PARTS]["parts"])
    assert note == "one by one: refused together: refused"


def test_each_way_is_measured_within_each_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "of_corpus", _small)
    found = memory.measure("small", "v5e:2x2", (0.9, 0.05), memory.WAYS, compiles=False)
    assert found["peak"] > 0
    assert found["planning"] > 0
    less, little = found["rows"]
    for way in memory.WAYS:
        assert less[way]["peak"] <= 0.9
        assert less[way]["step"] >= found["free"]
        assert "DoesNotFitError" in little[way]["refused"]
    assert less["recipes"]
    assert not little["recipes"]
    made = [*memory.cells({**found, "model": "small", "cluster": "v5e:2x2"})]
    assert [len(row) for row in made] == [len(memory.HEADS)] * 2
