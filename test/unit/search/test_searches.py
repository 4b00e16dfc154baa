"""What was searched is not searched again in the same planning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import tanh_layers

import autoshard
from autoshard.errors import DoesNotFitError
from autoshard.frontend import planning
from autoshard.passes.recursive_programming import PlannedProgram, ReadProgram
from autoshard.search.automatic import Job
from autoshard.search.searches import Searches


def _step(states: Any, x: Any) -> Any:
    weights, moments = states
    gradients = jax.grad(tanh_layers.loss)(weights, x)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, gradients)
    return jax.tree.map(lambda w, m: w - m, weights, moments), moments


def test_each_program_is_read_once_and_searched_once_within_each_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights = [jax.ShapeDtypeStruct((256, 256), jnp.float32)] * 4
    x = jax.ShapeDtypeStruct((2048, 256), jnp.float32)
    options: Any = {"cluster": "v5e:1x2", "donate_argnums": 0}
    free = autoshard.plan(_step, (weights, weights), x, **options)
    read, searched = Counter[tuple[int, ...]](), Counter[tuple[int, str]]()
    read_flat, search = Job.read_flat, ReadProgram.searched

    def told(job: Job, on_host: Sequence[int] = ()) -> ReadProgram:
        read[tuple(on_host)] += 1
        return read_flat(job, on_host)

    def asked(self: ReadProgram, options: Any, most_seconds: float, stages: int) -> PlannedProgram:
        searched[id(self), options.memory_limit] += 1
        return search(self, options, most_seconds, stages)

    monkeypatch.setattr(planning, "with_switches", lambda error, *_: error)
    monkeypatch.setattr(Job, "read_flat", told)
    monkeypatch.setattr(ReadProgram, "searched", asked)
    limit = int(0.3 * free.peak_bytes)
    with pytest.raises(DoesNotFitError, match="even with all optimizer states") as raised:
        autoshard.plan(
            _step,
            (weights, weights),
            x,
            **options,
            recompute="auto",
            host_offload="auto",
            memory_limit=limit,
        )
    # What stays where it needs least is told as well.
    assert "tensors (" in raised.value.largest
    assert raised.value.largest in raised.value.found
    assert len(read) > 1
    assert set(read.values()) == set(searched.values()) == {1}


def test_what_does_not_fit_is_not_searched_within_less() -> None:
    program: Any = SimpleNamespace()
    searches, asked = Searches(), list[float]()

    def search(limit: float) -> Any:
        asked.append(limit)
        raise DoesNotFitError("too much", None, 3.0, limit)

    for limit in (2.0, 2.0, 1.0, 2.5):
        with pytest.raises(DoesNotFitError):
            searches.of((), lambda: program).searched(limit, 1.0, lambda limit=limit: search(limit))
    assert asked == [2.0, 2.5]
