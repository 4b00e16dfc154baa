"""What becomes of a value that waits for its reader, by the core."""

from __future__ import annotations

import pytest

from autoshard._core import (
    Dropped,
    Effects,
    HostLink,
    LinkedBlock,
    RecomputedBlock,
    StackChanges,
    Storage,
    Transfer,
)

POINTS = 6
GAP = Dropped(0, early=0, late=5, middle=2)
KEPT, AGAIN, HOST = (bytes((code,)) for code in range(3))


def block() -> RecomputedBlock:
    """One op a point; the first one makes 8 bytes, which the last one reads."""
    made = RecomputedBlock(POINTS)
    made.add_value(
        0, Storage.STORED, 8.0, POINTS, [POINTS - 1], is_counted=True, is_parameter=False
    )
    for op in range(POINTS):
        operands, results = ([0] if op == POINTS - 1 else []), ([0] if op == 0 else [])
        made.add_op(operands, results, op, 0, 1.0, sends=False, gathers=False)
    return made


class Question:
    """Within 4 bytes; each op takes a second, and the value ``send_seconds`` to the host."""

    def __init__(
        self,
        send_seconds: float | None,
        transfers: tuple[Transfer, ...] = (),
        slowdown: float = 1.0,
    ) -> None:
        core, seconds, linked = block(), 0.0, None
        if send_seconds is not None:
            link = HostLink([1.0] * POINTS, [], [], transfers, slowdown=slowdown)
            linked, seconds = LinkedBlock(core, link, range(POINTS + 1), None), send_seconds
        self.effects = Effects(
            core,
            [8.0] * POINTS,
            4.0,
            [GAP],
            [seconds],
            linked,
            keep_sent=False,
            keep_parameters=False,
        )
        self.stacks = StackChanges(core, linked, 0.0, [], [], [])

    def answer(self, fates: bytes) -> tuple[float, float]:
        return self.effects.answer(fates, self.stacks)


def test_a_value_that_is_kept_is_there_at_all_points() -> None:
    assert Question(None).answer(KEPT) == (4.0 * POINTS, 0.0)


def test_a_value_that_is_computed_again_is_there_when_it_is_made_and_read() -> None:
    assert Question(None).answer(AGAIN) == (4.0 * 2, 0.0)


def test_no_decision_leaves_less_than_if_what_goes_took_nothing_while_it_waits() -> None:
    """It is there when it is made."""
    question = Question(0.5)
    assert question.effects.least_excess(KEPT) == 4.0 * POINTS
    for fate in (AGAIN, HOST):
        assert question.effects.least_excess(fate) == 4.0 < question.answer(fate)[0]


def test_a_value_on_the_host_is_gone_once_it_has_been_sent_until_it_comes_back() -> None:
    question = Question(0.5)
    assert question.answer(HOST) == (4.0 * 4, 0.0)
    found = question.effects.effect(HOST, question.stacks)
    assert [(one.number, one.gone, one.back) for one in found.fetches] == [(0, 2, 4)]
    assert list(found.live) == [8.0, 8.0, 0.0, 0.0, 8.0, 8.0]
    assert (found.excess, found.seconds) == question.answer(HOST)


def test_the_reader_waits_for_a_slow_link() -> None:
    """Three seconds there, from the second op on, and three back: two more than there are."""
    assert Question(3.0).answer(HOST) == (4.0 * POINTS, 2.0)


def test_a_hidden_transfer_costs_what_it_slows_down() -> None:
    """Half a second there and back: computing a value again that takes less is cheaper."""
    assert Question(0.5, slowdown=1.25).answer(HOST)[1] == 0.25
    assert Question(3.0, slowdown=1.25).answer(HOST)[1] == 2.0 + 0.25 * (6.0 - 2.0)


def test_what_the_program_itself_waits_for_is_not_counted() -> None:
    own = Transfer(9.0, begins=0, needed=POINTS)
    assert Question(0.5, (own,)).answer(KEPT) == (4.0 * POINTS, 0.0)


def test_nothing_goes_to_the_host_without_a_link() -> None:
    with pytest.raises(ValueError, match="there is no link"):
        Question(None).answer(HOST)


def test_each_value_has_a_fate() -> None:
    with pytest.raises(ValueError, match="not a fate of each value"):
        Question(None).answer(KEPT + KEPT)
