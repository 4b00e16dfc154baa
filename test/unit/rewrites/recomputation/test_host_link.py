"""The link to the host sends one value after the other, beside the ops."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from itertools import accumulate

import pytest

from autoshard._core import HostLink, Transfer, timetable

END = 4
OPS = [0.0, 1.0, 2.0, 3.0, 4.0]
"""When each op starts, and the last one ends."""


def test_a_transfer_that_fits_beside_the_ops_is_not_waited_for() -> None:
    found = timetable(OPS, [Transfer(1.5, begins=1, needed=3)])
    assert (found.waited, found.over) == (0.0, [3])


def test_a_reader_waits_for_what_ops_do_not_hide() -> None:
    found = timetable(OPS, [Transfer(1.5, begins=2, needed=3)])
    assert (found.waited, found.over) == (0.5, [3])


def test_what_goes_out_first_is_in_the_way_of_what_comes_back() -> None:
    out, back = Transfer(3.0, begins=0, needed=END), Transfer(1.0, begins=1, needed=2)
    found = timetable(OPS, [out, back])
    assert found.waited == (3.0 - 2.0) + 1.0
    assert found.over == [2, 2]


def test_of_those_that_begin_together_the_one_that_is_needed_first_goes_first() -> None:
    late, soon = Transfer(1.0, begins=1, needed=3), Transfer(1.0, begins=1, needed=2)
    found = timetable(OPS, [late, soon])
    assert (found.waited, found.over) == (0.0, [3, 2])


def test_the_step_ends_when_everything_has_been_sent() -> None:
    found = timetable(OPS, [Transfer(2.5, begins=3, needed=END)])
    assert found.waited == 1.5


def test_a_busy_link_sends_nothing() -> None:
    found = timetable([0.0, 1.0, 1.0, 1.0, 2.0], [Transfer(1.0, begins=1, needed=3)])
    assert found.waited == 1.0


LOOP = 1, 5
"""Ops of a loop: four of a second each in all trips, between two others."""


def waited_in_loop(*transfers: Transfer) -> float:
    moved = [(LOOP, one) for one in transfers]
    return HostLink([10.0, 1.0, 1.0, 1.0, 1.0, 10.0], [LOOP], moved, []).delay()


@pytest.mark.parametrize(("made", "waited"), [(1, 0.0), (3, 0.0), (4, 0.5), (5, 1.5)])
def test_a_trip_waits_for_what_goes_away_late(made: int, waited: float) -> None:
    """Ops before it is made hide nothing, nor do those outside of the loop."""
    assert waited_in_loop(Transfer(1.5, begins=made, needed=5)) == waited


def test_transfers_of_a_trip_share_its_ops() -> None:
    both = Transfer(3.0, begins=1, needed=5), Transfer(2.0, begins=4, needed=5)
    assert waited_in_loop(*both) == 1.0
    assert waited_in_loop(Transfer(2.0, begins=1, needed=1)) == 2.0


def test_what_a_loop_moves_keeps_the_link_busy_for_others() -> None:
    """One of its four seconds is left for what goes away from before it until behind it."""
    inside = [(LOOP, Transfer(3.0, begins=1, needed=5))]
    busy = [0.0, 1.0, 1.0, 1.0, 1.0, 0.0]
    assert HostLink(busy, [LOOP], inside, [Transfer(1.5, begins=0, needed=5)]).delay() == 0.5


def test_ops_take_longer_beside_transfers() -> None:
    """A third of 3 s is waited for; what runs beside the rest takes a tenth more."""
    sent = [Transfer(3.0, begins=0, needed=2)]
    found = HostLink([1.0] * 4, [], [], sent, slowdown=1.1).delay()
    assert found == pytest.approx(1.0 + 0.1 * 2.0)
    with pytest.raises(ValueError, match="slowdown is below 1"):
        HostLink([1.0], [], [], [], slowdown=0.9)


def op_by_op(free: Sequence[float], transfers: Sequence[Transfer]) -> tuple[float, list[int]]:
    """The same for each op alone."""
    coming = deque(
        sorted(
            range(len(transfers)), key=lambda one: (transfers[one].begins, transfers[one].needed)
        )
    )
    queue: deque[int] = deque()
    left = [one.seconds for one in transfers]
    over = [len(free)] * len(transfers)
    waited = 0.0
    for op, seconds in enumerate(free):
        while coming and transfers[coming[0]].begins <= op:
            queue.append(coming.popleft())
        while any(transfers[one].needed == op for one in queue):
            over[queue[0]] = op
            waited += left[queue.popleft()]
        while queue and left[queue[0]] <= seconds:
            over[queue[0]] = op + 1
            seconds -= left[queue.popleft()]
        if queue:
            left[queue[0]] -= seconds
    return waited + sum(left[one] for one in (*queue, *coming)), over


def test_all_is_sent_as_if_each_op_was_looked_at() -> None:
    draw = random.Random(0)
    for _ in range(300):
        free = [float(draw.choice((0, 0, 1, 2, 5))) for _ in range(draw.randint(1, 12))]
        begins = [draw.randint(0, len(free)) for _ in range(draw.randint(0, 6))]
        transfers = [
            Transfer(float(draw.randint(0, 6)), one, draw.randint(one, len(free))) for one in begins
        ]
        start = list(accumulate(free, initial=0.0))
        found = timetable(start, transfers)
        assert (found.waited, found.over) == op_by_op(free, transfers)
