"""A search within less memory than the last one is not made where that one's plan keeps within."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from autoshard.cluster import Cluster
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.passes.recompute import Recompute
from autoshard.passes.recursive_programming import PlannedProgram, RecursiveProgramming
from autoshard.search import automatic
from autoshard.search.automatic import Job, Planned
from autoshard.search.last_search import LastSearch

STEP = """
func.func public @main(%x: tensor<512x256xf32>, %w: tensor<WxWxf32>) -> tensor<512x256xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<512x256xf32>, tensor<WxWxf32>) -> tensor<512x256xf32>
  %z = stablehlo.tanh %y : tensor<512x256xf32>
  return %z : tensor<512x256xf32>
}
""".replace("W", "256")
ALL = 1 << 30


@dataclass
class Counted:
    """A job that counts what is read for a search."""

    job: Job
    count: int = 0

    def plan(self, limit: float, text: str = STEP) -> Planned:
        def read(_: object) -> mlir.Module:
            return parse_bytes(text.encode(), new_context())

        options = RecursiveProgramming(memory_limit=str(limit))
        recomputing = Recompute(choose="marks", memory_limit=str(limit))
        asked = {"options": options, "recomputing": recomputing}
        return replace(self.job, read=read, program=text, **asked).plan()


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Counted:
    job = Job(
        "step",
        read=lambda _: pytest.fail("no program"),
        num_devices=4,
        cluster=Cluster.of("h100:4"),
        options=RecursiveProgramming(),
        spreading=None,
        recomputing=None,
        last_search=LastSearch(),
    )
    counted, read = Counted(job), automatic.read_module

    def counting(*args: object):
        counted.count += 1
        return read(*args)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(automatic, "read_module", counting)
    return counted


def found_by(planned: Planned) -> PlannedProgram:
    assert planned.searched is not None
    return planned.searched


def test_a_plan_that_keeps_within_less_memory_is_not_searched_again(job: Counted) -> None:
    first = found_by(job.plan(ALL))
    limit = first.summary.peak_bytes_per_device
    again = found_by(job.plan(limit))
    assert job.count == 1
    assert (again.module, again.plan) == (first.module, first.plan)
    assert again.summary.memory_limit == limit
    assert again.options.memory_limit == str(limit)


def test_a_plan_that_needs_more_is_searched_again(job: Counted) -> None:
    peak = found_by(job.plan(ALL)).summary.peak_bytes_per_device
    less = found_by(job.plan(peak * 1.5)).summary.peak_bytes_per_device
    with pytest.raises(automatic.DoesNotFitError):
        job.plan(less / 2)
    assert job.count == 2


def test_more_memory_or_another_program_is_searched_again(job: Counted) -> None:
    peak = found_by(job.plan(ALL)).summary.peak_bytes_per_device
    job.plan(ALL * 2)
    job.plan(peak * 2, STEP.replace("tanh", "exponential"))
    assert job.count == 3
