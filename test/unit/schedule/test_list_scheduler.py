"""A stage takes the best of what it can start."""

import pytest

from autoshard.errors import PlanError
from autoshard.schedule.list_scheduler import Limits, Rank, list_schedule
from autoshard.schedule.work import Work, lower_bound


def in_order(works):
    """The first work of the first micro-batch first."""
    return Rank((0,) * len(works))


def starts(schedule, number):
    """When one work starts, by micro-batch."""
    return [run.start for run in schedule.runs if run.work == number]


def test_what_is_read_on_another_stage_is_handed_over_first():
    works = [Work("A", 0, 2), Work("B", 1, 3, (0,))]
    schedule = list_schedule(works, 2, in_order(works), transfer_seconds=1)
    assert (starts(schedule, 0), starts(schedule, 1)) == ([0, 2], [3, 6])
    assert (schedule.seconds, schedule.idle_seconds) == (9, 8)


def test_works_say_what_each_thing_that_they_read_takes_on_its_way():
    works = [
        Work("A", 0, 2),
        Work("B", 1, 3, (0,), moved=(4,)),
        Work("C", 0, 1, (0, 1), moved=(0, 1)),
    ]
    schedule = list_schedule(works, 1, in_order(works), transfer_seconds=100)
    assert [starts(schedule, number) for number in range(3)] == [[0], [6], [10]]
    assert lower_bound(works, 1, transfer_seconds=100) == schedule.seconds == 11
    with pytest.raises(PlanError, match="seconds below 0"):
        list_schedule([Work("A", 0, 2), Work("B", 1, 3, (0,), moved=(-1,))], 1, Rank((0, 0)))


def test_a_stage_runs_ahead_as_far_as_its_limit():
    works = [Work("F", 0, 1, ahead=1), Work("X", 1, 5, (0,)), Work("B", 0, 1, (1,), ahead=-1)]
    schedule = list_schedule(works, 3, in_order(works), limits=Limits(ahead=(2, 1)))
    assert starts(schedule, 0) == [0, 1, 7]  # the third one behind B of the first, at 6
    assert starts(list_schedule(works, 3, in_order(works)), 0) == [0, 1, 2]


def test_what_is_kept_until_deferred_work_is_done_counts():
    works = [
        Work("F", 0, 1, ahead=1, kept=1),
        Work("I", 0, 1, (0,), ahead=-1),
        Work("W", 0, 1, (1,), kept=-1, is_deferred=True),
    ]
    schedule = list_schedule(works, 4, Rank((0, 1, 2)), limits=Limits(kept=(2,)))
    assert schedule.in_flight() == (2,)
    assert schedule.seconds == 12


def test_a_patient_stage_does_not_begin_deferred_work_before_other_work():
    works = [
        Work("I", 0, 1, kept=1),
        Work("W", 0, 4, (0,), kept=-1, is_deferred=True),
        Work("X", 1, 1, (0,)),
        Work("B", 0, 1, (2,)),
    ]

    rank = Rank(tuple(int(work.is_deferred) for work in works))
    hasty, patient = (list_schedule(works, 1, rank, patience=each) for each in (0, 1))
    assert (starts(hasty, 3), starts(patient, 3)) == ([5], [2])


@pytest.mark.parametrize(
    ("works", "said"),
    [
        ([Work("A", 0, 1, (0,))], r"work 0 \(A\) is after \(0,\): name earlier ones"),
        ([Work("A", 0, -1)], r"seconds below 0"),
        ([Work("A", 0, 1, kept=1)], r"stage 0 begins more of a micro-batch than it ends"),
    ],
)
def test_works_in_no_order_are_refused(works, said):
    with pytest.raises(PlanError, match=said):
        list_schedule(works, 1, in_order(works))


def test_a_limit_that_lets_nothing_begin_is_refused():
    works = [Work("F", 0, 1, ahead=1), Work("B", 0, 1, (0,), ahead=-1)]
    with pytest.raises(PlanError, match=r"let no stage go on. Give larger ones"):
        list_schedule(works, 1, in_order(works), limits=Limits(ahead=(0,)))
    raised = Limits(ahead=(0,), are_raised=True)
    assert list_schedule(works, 1, in_order(works), limits=raised).seconds == 2
