"""The link to the host sends one value after the other, beside the ops."""

from __future__ import annotations

from autoshard.planned.host_link import Transfer, timetable

END = 4
OPS = [1.0, 1.0, 1.0, 1.0]


def test_a_transfer_that_fits_beside_the_ops_is_not_waited_for() -> None:
    found = timetable(OPS, [Transfer(1.5, begins=1, needed=3)])
    assert (found.waited, found.over) == (0.0, (3,))


def test_a_reader_waits_for_what_ops_do_not_hide() -> None:
    found = timetable(OPS, [Transfer(1.5, begins=2, needed=3)])
    assert (found.waited, found.over) == (0.5, (3,))


def test_what_goes_out_first_is_in_the_way_of_what_comes_back() -> None:
    out, back = Transfer(3.0, begins=0, needed=END), Transfer(1.0, begins=1, needed=2)
    found = timetable(OPS, [out, back])
    assert found.waited == (3.0 - 2.0) + 1.0
    assert found.over == (2, 2)


def test_the_step_ends_when_everything_has_been_sent() -> None:
    found = timetable(OPS, [Transfer(2.5, begins=3, needed=END)])
    assert found.waited == 1.5


def test_a_busy_link_sends_nothing() -> None:
    found = timetable([1.0, 0.0, 0.0, 1.0], [Transfer(1.0, begins=1, needed=3)])
    assert found.waited == 1.0
