"""Tasks on streams, scheduled from the end: by hand, and against streams run tick by tick."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_oracle import Work, run

from autoshard._core import StreamTask, scheduled_from_end

ICI, NVLINK, NETWORK = 1, 2, 4


def op(seconds: float, *after: int) -> StreamTask:
    return StreamTask(seconds, computes=True, after=list(after))


def sent(seconds: float, *after: int, links: int = NVLINK) -> StreamTask:
    return StreamTask(seconds, links=links, after=list(after))


def waited_for(seconds: float, *after: int, links: int = NVLINK) -> StreamTask:
    return StreamTask(seconds, computes=True, links=links, after=list(after))


def times(found: Any) -> list[tuple[float, float, float, float]]:
    return [(one.begin, one.end, one.exposed, one.slack) for one in found.tasks]


def test_a_collective_hides_behind_the_op_that_does_not_wait_for_it():
    # Made by the op of 3 s, read by that of 4 s; that of 2 s has nothing to do with it.
    found = scheduled_from_end([op(3), sent(5, 0), op(2), op(4, 1, 2)], 1.0)
    assert found.seconds == 12
    assert times(found) == [(0, 3, 0, 0), (3, 8, 3, 0), (6, 8, 0, 6), (8, 12, 0, 0)]


def test_weights_are_gathered_while_the_layer_before_computes():
    # Three layers of 4 s, each reads what is gathered in 3 s from arguments alone.
    tasks = [sent(3), op(4, 0), sent(3), op(4, 1, 2), sent(3), op(4, 3, 4)]
    found = scheduled_from_end(tasks, 1.0)
    assert found.seconds == 15
    assert [one.exposed for one in found.tasks[::2]] == [3, 0, 0]
    # As late as they can, with the link idle between them: each could begin earlier.
    assert [one.begin for one in found.tasks[::2]] == [0, 4, 8]
    assert [one.slack for one in found.tasks[::2]] == [0, 4, 8]


def test_communication_beyond_the_compute_beside_it_is_paid():
    tasks = [sent(7), op(4, 0), sent(7), op(4, 1, 2), sent(7), op(4, 3, 4)]
    found = scheduled_from_end(tasks, 1.0)
    assert found.seconds == 3 * 7 + 4
    assert sum(one.exposed for one in found.tasks) == found.seconds - 3 * 4


def test_two_kinds_of_links_send_at_once():
    tasks = [sent(4, links=NVLINK), sent(4, links=NETWORK), op(1, 0, 1)]
    assert scheduled_from_end(tasks, 1.0).seconds == 5
    same = [sent(4), sent(4), op(1, 0, 1)]
    assert scheduled_from_end(same, 1.0).seconds == 9
    both = [sent(4, links=NVLINK | NETWORK), sent(4, links=NETWORK), op(1, 0, 1)]
    assert scheduled_from_end(both, 1.0).seconds == 9


def test_compute_is_slowed_down_while_a_collective_runs():
    # 3 s of 1.25 times as long are 3.75 s; the collective takes 5, so that 1.25 s are waited.
    found = scheduled_from_end([sent(5), op(3), op(1, 0, 1)], 1.25)
    assert found.seconds == 6
    assert found.tasks[0].exposed == 1.25


def test_what_is_not_hidden_keeps_the_cores():
    found = scheduled_from_end([op(3), waited_for(5, 0), op(2), op(4, 1, 2)], 1.5)
    assert found.seconds == 14


def test_of_two_collectives_the_one_with_less_time_left_goes_first():
    # From the end both are ready at once; the first one is made by the op that runs last.
    tasks = [op(1), op(4, 0), sent(2, 0), sent(2, 1), op(1, 2, 3)]
    found = scheduled_from_end(tasks, 1.0)
    assert (found.tasks[3].begin, found.tasks[2].begin) == (5, 3)
    assert found.seconds == 8


@pytest.mark.parametrize(
    ("tasks", "slowdown", "message"),
    [
        (lambda: [op(1, 1), op(1, 0)], 1.0, "in a circle"),
        (lambda: [op(-1)], 1.0, "task 0 takes -1.0* seconds"),
        (lambda: [op(float("nan"))], 1.0, "0 or more are needed"),
        (lambda: [op(1, 3)], 1.0, "waits for task 3, which is none"),
        (lambda: [StreamTask(1.0)], 1.0, "neither cores nor links"),
        (lambda: [sent(1, links=8)], 1.0, "links that are none"),
        (lambda: [op(1)], 0.5, "a slowdown of 1 or more"),
    ],
)
def test_tasks_that_are_none_are_refused(
    tasks: Callable[[], list[StreamTask]], slowdown: float, message: str
):
    with pytest.raises(ValueError, match=message):
        scheduled_from_end(tasks(), slowdown)


@st.composite
def works(draw: st.DrawFn) -> list[Work]:
    found: list[Work] = []
    for number in range(draw(st.integers(1, 9))):
        computes, links = draw(
            st.sampled_from([(True, 0)] * 3 + [(False, 1), (False, 2), (False, 3), (True, 2)])
        )
        after = draw(st.sets(st.integers(0, max(0, number - 1)), max_size=2)) if number else ()
        found.append(Work(draw(st.integers(1, 5)), computes, links, tuple(sorted(after))))
    return found


@given(works(), st.sampled_from([1, 2]))
def test_as_streams_that_are_run_tick_by_tick(given_works: list[Work], slowdown: int):
    tasks = [
        StreamTask(one.seconds, computes=one.computes, links=one.links, after=list(one.after))
        for one in given_works
    ]
    found, oracle = scheduled_from_end(tasks, slowdown), run(given_works, slowdown)
    assert found.seconds == oracle.seconds
    assert times(found) == [tuple(map(float, one)) for one in oracle.works]
    computed = sum(one.seconds for one in given_works if one.computes)
    everything = sum(one.seconds for one in given_works)
    assert computed <= found.seconds <= everything
    of_links = [sum(w.seconds for w in given_works if w.links & link) for link in (1, 2)]
    assert found.seconds >= max(of_links)
