"""Works of a training step, and seconds that no schedule is under."""

from autoshard.schedule.work import (
    StageSeconds,
    longest_before,
    longest_behind,
    lower_bound,
    training_works,
)


def test_the_backward_pass_goes_back_and_reads_what_was_kept():
    works = training_works([StageSeconds(1, 2, 3), StageSeconds(4, 5, 6)], 2)
    assert [(work.name, work.stage, work.seconds, work.after) for work in works] == [
        ("F", 0, 1, ()),
        ("F", 1, 4, (0,)),
        ("B", 1, 11, (1,)),
        ("B", 0, 5, (0, 2)),
    ]


def test_nobody_waits_for_gradients_of_weights():
    works = training_works([StageSeconds(1, 2, 3)] * 2, 2, splits_gradients=True)
    deferred = [number for number, work in enumerate(works) if work.is_deferred]
    assert [works[number].name for number in deferred] == ["W", "W"]
    assert not any(number in work.after for work in works for number in deferred)


def test_a_stage_begins_when_its_first_work_can_and_leaves_the_rest_of_the_last_one():
    works = training_works([StageSeconds(1, 1, 0)] * 2, 2)
    assert (longest_before(works), longest_behind(works)) == ([0, 1, 2, 3], [3, 2, 1, 0])
    assert lower_bound(works, 3) == 8
    assert lower_bound(works, 3, transfer_seconds=2) == 12


def test_one_micro_batch_takes_its_whole_way():
    works = training_works([StageSeconds(1, 1, 0)] * 4, 4)
    assert lower_bound(works, 1) == 8
