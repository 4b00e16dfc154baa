"""Copies of ops that run again: which, and how much memory a program takes with them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from autoshard import _core
from autoshard._core import Dropped, Storage


@dataclass
class Program:
    """One op a point, each with one result, and an argument that all may read.

    Value 0 is the argument, value n + 1 the result of op n.
    """

    operands: Sequence[Sequence[int]]
    sizes: Sequence[int]

    def readers(self, value: int) -> list[int]:
        return [op for op, read in enumerate(self.operands) if value in read]

    def gap(self, value: int) -> Dropped | None:
        stops = [value - 1, *self.readers(value)]
        widest = max(range(1, len(stops)), key=lambda n: stops[n] - stops[n - 1], default=0)
        if not widest:
            return None
        early, late = stops[widest - 1], stops[widest]
        return Dropped(value, early=early, late=late, middle=(early + late) // 2)

    def block(self) -> _core.RecomputedBlock:
        made = _core.RecomputedBlock(len(self.operands))
        for value in range(len(self.operands) + 1):
            readers = self.readers(value)
            made.add_value(
                value - 1,
                Storage.STORED if value else Storage.KEPT,
                self.sizes[value],
                max([value - 1, *readers]) + 1,
                readers,
                is_counted=True,
                is_parameter=False,
            )
        for op, read in enumerate(self.operands):
            ready = max((value - 1 for value in read if value), default=0)
            made.add_op(read, [op + 1], op, ready, 1.0, sends=False, gathers=False)
        return made

    def live(self, batches: Sequence[_core.Batch]) -> list[float]:
        """Bytes at each point once copies run before the readers of these batches."""
        copied: dict[int, tuple[int, int]] = {}
        held = {op + 1: (op, op) for op in range(len(self.operands))}
        before = {batch.position: batch for batch in batches}

        def read(value: int, point: int, *, copy: bool) -> None:
            lives = copied if copy and value in copied else held
            if value in lives:
                lives[value] = (lives[value][0], point)

        for op, operands in enumerate(self.operands):
            batch = before.get(op)
            for again in batch.ops if batch else ():
                copied[again + 1] = (op, op)
                for value in self.operands[again]:
                    read(value, op, copy=True)
            for value in operands:
                read(value, op, copy=batch is not None)
        live = [0.0] * len(self.operands)
        for lives in (held, copied):
            for value, (first, last) in lives.items():
                for point in range(first, last + 1):
                    live[point] += self.sizes[value]
        return live


def clones(program: Program, dropped: Sequence[Dropped]) -> _core.Clones:
    return _core.clones_for(program.block(), dropped, [], keep_sent=False, keep_parameters=False)


def test_what_a_reader_needs_runs_again_before_it() -> None:
    program = Program([[0], [1], [0], [3, 2]], [0, 4, 4, 1, 1])
    dropped = Dropped(2, early=1, late=3, middle=2)
    (batch,) = clones(program, [dropped]).batches
    assert (batch.position, batch.ops, batch.inputs) == (3, [0, 1], [0])


def test_a_copy_lives_until_the_last_that_reads_it() -> None:
    """Value 2 is made of value 1; op 3 reads 1 and op 5 reads 2, so the copy of 1 waits for it."""
    program = Program([[0], [1], [0], [1, 3], [0], [2, 5]], [0, 100, 10, 1, 1, 1, 1])
    gaps = [
        Dropped(1, early=1, late=3, middle=2),
        Dropped(2, early=1, late=5, middle=3),
    ]
    change = np.cumsum(clones(program, gaps).change)
    assert list(change[:5]) == [0, 0, -110, -10, 90]


def test_originals_that_nobody_reads_any_more_cost_nothing() -> None:
    program = Program([[0], [0], [1, 2]], [0, 4, 1, 1])
    found = clones(program, [Dropped(1, early=0, late=2, middle=1)])
    assert [batch.ops for batch in found.batches] == [[0]]
    assert found.seconds == 0


@pytest.mark.parametrize("part", range(4))
def test_memory_is_that_of_the_rewritten_program(part: int) -> None:
    for seed in range(part * 100, part * 100 + 100):
        draw = random.Random(seed)
        count = draw.randint(4, 30)
        program = Program(
            [draw.sample(range(op + 1), min(op + 1, draw.randint(1, 3))) for op in range(count)],
            [0, *(draw.randint(1, 9) for _ in range(count))],
        )
        gaps = [gap for value in range(1, count + 1) if (gap := program.gap(value))]
        dropped = draw.sample(gaps, draw.randint(0, len(gaps)))
        found = clones(program, dropped)
        expected = np.array(program.live(found.batches))
        actual = np.array(program.live([])) + np.cumsum(found.change)[:count]
        # What copies need for the moment in which they run comes on top.
        runs = [batch.position for batch in found.batches]
        quiet = np.setdiff1d(np.arange(count), runs)
        assert actual[quiet] == pytest.approx(expected[quiet]), seed
        assert (actual[runs] >= 0).all(), seed


@pytest.mark.parametrize(
    "dropped",
    [
        Dropped(7, early=0, late=1, middle=0),
        Dropped(-1, early=0, late=1, middle=0),
        Dropped(1, early=50_000_000, late=1, middle=0),
        Dropped(1, early=-2, late=1, middle=0),
        Dropped(1, early=0, late=2, middle=0),
        Dropped(1, early=0, late=-1, middle=0),
        Dropped(1, early=0, late=1, middle=3),
        Dropped(1, early=0, late=1, middle=-1),
        Dropped(0, early=-1, late=0, middle=0),
    ],
    ids=lambda one: f"{one.number},{one.early},{one.late},{one.middle}",
)
def test_dropped_values_out_of_range_are_refused(dropped: Dropped) -> None:
    """Value 0 is out of it as nothing makes it again."""
    program = Program([[0], [1]], [0, 1, 1])
    for of_dropped, sent in (([dropped], []), ([], [dropped])):
        with pytest.raises(ValueError, match="a number is out of range"):
            _core.clones_for(
                program.block(), of_dropped, sent, keep_sent=False, keep_parameters=False
            )


@pytest.mark.parametrize(
    ("operands", "results", "point", "ready"),
    [([3], [], 0, 0), ([], [3], 0, 0), ([], [], 2, 0), ([], [], -1, 0), ([], [], 0, 2)],
)
def test_ops_out_of_range_are_refused(
    operands: list[int], results: list[int], point: int, ready: int
) -> None:
    block = _core.RecomputedBlock(1)
    with pytest.raises(ValueError, match="a number is out of range"):
        block.add_op(operands, results, point, ready, 1.0, sends=False, gathers=False)


@pytest.mark.parametrize(
    ("maker", "storage", "end"),
    [(0, Storage.KEPT, 2), (0, Storage.KEPT, -1), (-2, Storage.KEPT, 0), (-1, Storage.FUSED, 0)],
)
def test_values_out_of_range_are_refused(maker: int, storage: Storage, end: int) -> None:
    """A fused value is one of an op: the fusion that reads it computes it."""
    block = _core.RecomputedBlock(1)
    with pytest.raises(ValueError, match="a number is out of range"):
        block.add_value(maker, storage, 1.0, end, [], is_counted=True, is_parameter=False)
