"""What is computed again, or sent to the host, waits for something that is really made late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import autoshard
from autoshard._core import Batch
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.ir.host_memory import PINNED_HOST, moved_to
from autoshard.rewrites.recomputation import straight
from bench.programs.llama import Config, train_step

CLUSTER = "h100:1"
SMALL = Config(
    features=256, hidden=512, heads=4, kv_heads=4, layers=4, vocabulary=512, batch=8, tokens=512
)
WIDE = Config(
    features=2048, hidden=8192, heads=8, kv_heads=8, layers=3, vocabulary=512, batch=16, tokens=1024
)


@dataclass(frozen=True)
class Barrier:
    """An ``optimization_barrier`` of a plan."""

    is_between_moves: bool
    """Whether it takes what goes to the host, and what comes back goes through another one."""
    is_waited_for: bool
    """Whether something reads the last of its results: what it waits for."""
    gradients: int
    """Products that it waits for and that go through it alone."""
    sums: int
    """Sums likewise, of arrays with one dim more at least."""


def _barriers(
    config: Config, share: float, cluster: str = CLUSTER, **options: Any
) -> list[Barrier]:
    """Those of the step's plan within a share of the memory that it takes."""
    step, arguments = train_step(config)
    options |= {"cluster": cluster, "donate_argnums": (0, 1)}
    limit = int(share * autoshard.plan(step, *arguments, **options).peak_bytes)
    plan = autoshard.plan(step, *arguments, memory_limit=limit, recompute="auto", **options)
    found: list[Barrier] = []

    def visit(op: mlir.Operation) -> mlir.WalkResult:
        if op.name == "stablehlo.optimization_barrier":
            last = op.results[len(op.results) - 1]
            is_waited_for = bool(list(last.uses))
            found.append(Barrier(_is_between_moves(op), is_waited_for, *_gradients(op)))
        return mlir.WalkResult.ADVANCE

    module = parse_bytes(plan.bytecode, new_context(), "plan")
    module.operation.walk(visit)
    return found


def _gradients(barrier: mlir.Operation) -> tuple[int, int]:
    """How many products and sums it takes that nothing else reads, or what copies of products in
    another type or order are."""
    makers = [
        value.owner
        for value in barrier.operands
        if isinstance(value, mlir.OpResult) and len(list(value.uses)) == 1
    ]
    names = [f"stablehlo.{name}" for name in ("dot_general", "transpose", "convert")]
    products = sum(maker.name in names for maker in makers)
    return products, sum(maker.name == "stablehlo.reduce" for maker in makers)


def _is_between_moves(barrier: mlir.Operation) -> bool:
    maker = barrier.operands[0].owner
    if isinstance(maker, mlir.Block) or moved_to(maker.operation) != PINNED_HOST:
        return False
    return all(use.owner.name == barrier.name for use in barrier.results[0].uses)


def test_what_a_barrier_waits_for_is_read_behind_it() -> None:
    """XLA drops the others from it, and copies run as soon as what they read is there."""
    barriers = _barriers(SMALL, 0.5)
    assert len(barriers) > 4 * SMALL.layers
    assert all(one.is_waited_for for one in barriers)


@pytest.mark.parametrize("devices", [1, 4])
def test_gradients_are_at_most_a_layer_late(devices: int) -> None:
    """Beside what is sent they are made late, and all that is computed again for them waits."""
    barriers = _barriers(SMALL, 0.5, f"h100:{devices}")
    weights = 7 * SMALL.layers
    found = sum(one.gradients for one in barriers)
    assert found > weights if devices > 1 else found < weights / 2
    # Scales of norms: what they are summed up from would wait as long.
    sums = sum(one.sums for one in barriers)
    assert (sums >= SMALL.layers) == (devices > 1)


def test_the_program_waits_until_a_value_is_on_the_host() -> None:
    """Nothing else would make XLA send it before it comes back."""
    barriers = _barriers(WIDE, 0.45, host_offload="auto")
    between = [one for one in barriers if one.is_between_moves]
    assert len(between) > WIDE.layers
    assert all(one.is_waited_for for one in between)


def test_what_reads_earlier_copies_is_late_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA:GPU would gather from the sums of all layers in one kernel, for the first reader."""
    written = straight._Writer._write_batch
    taken: list[bool] = []

    def told(self: straight._Writer, batch: Batch) -> None:
        before = dict(self.copies)
        read = self._copied_before(batch)
        written(self, batch)
        is_late = self._anchor(batch) is not None
        taken.extend(self.copies[number] != before[number] for number in read if is_late)

    monkeypatch.setattr(straight._Writer, "_write_batch", told)
    assert _barriers(SMALL, 0.5)
    assert taken
    assert all(taken)
