"""The list of a step, for the program of the lit test: two stages, two micro-batches."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

import autoshard
from autoshard.ir import mlir, new_context, parse_bytes, print_module
from autoshard.pipeline.donations import donations_of
from autoshard.pipeline.instructions import Run, Send, instructions_of
from autoshard.pipeline.order import works_of
from autoshard.rewrites.stage_tasks.program import Call, read_stage_program
from autoshard.rewrites.stage_tasks.write import split_stages
from autoshard.schedule.rules import schedule_of_works

TEXT = Path(__file__).parents[2] / "lit" / "split_stages" / "two_stages.mlir"


def split(*, defers):
    module = parse_bytes(TEXT.read_bytes(), new_context(), "two_stages")
    with module.context, mlir.Location.unknown():
        split_stages(module, defers=defers)
    return module


def scheduled(rule):
    program = read_stage_program(split(defers=rule == "zero_bubble"))
    works = works_of(program, {task.name: 1.0 for task in program.tasks}, defaultdict(float))
    return program, works, schedule_of_works(rule, works, 2, 2)


def test_tasks_are_what_textbooks_call_them():
    _, works, schedule = scheduled("1f1b")
    assert [(work.name, work.stage, work.after) for work in works] == [
        ("F", 0, ()),
        ("FB", 1, (0,)),
        ("B", 0, (0, 1)),
    ]
    assert schedule.in_flight()[0] == 2
    _, works, _ = scheduled("zero_bubble")
    assert [(work.name, work.stage, work.is_deferred) for work in works if work.stage == 1] == [
        ("FB", 1, False),
        ("W", 1, True),
    ]


@pytest.mark.parametrize("rule", ["gpipe", "1f1b", "zero_bubble"])
def test_every_slot_is_filled_before_it_is_read_and_dropped_after(rule):
    program, _, schedule = scheduled(rule)
    found = instructions_of(program, schedule)
    filled = {*found.arguments, *(slot for slot, _, _ in found.numbers)}
    for step in found.steps:
        assert filled >= set(step.operands)
        assert filled.isdisjoint(step.results), "no slot is used twice"
        filled |= set(step.results)
        filled -= set(step.dropped)
    assert filled >= set(found.results)
    runs = [step for step in found.steps if isinstance(step, Run)]
    assert len(runs) == 2 + 2 + 2 * len(program.calls)  # zeros, updates, two micro-batches
    assert sum(isinstance(step, Send) for step in found.steps) == 4


def test_sums_are_added_to_in_the_order_of_micro_batches():
    program, _, schedule = scheduled("gpipe")
    found = instructions_of(program, schedule)
    backward = [s for s in found.steps if isinstance(s, Run) and s.task == "stage0_loop2"]
    first, second = backward
    assert first.results[0] in second.operands


def test_sums_give_their_memory_to_the_next_ones_and_weights_to_theirs():
    program, _, _ = scheduled("1f1b")
    assert donations_of(program, {}) == {"stage1_loop1": {2: 1}, "stage0_loop2": {2: 0}}
    with_weights = donations_of(program, {1: 0, 2: 1})
    assert with_weights["stage0_after0"] == {0: 0}
    assert with_weights["stage1_after0"] == {0: 0}


def test_what_an_update_reads_twice_keeps_its_memory():
    program, _, _ = scheduled("1f1b")
    place = next(n for n, step in enumerate(program.after) if isinstance(step, Call))
    once = program.after[place]
    twice = replace(once, operands=(*once.operands, once.operands[0]))
    after = (*program.after[:place], twice, *program.after[place + 1 :])
    name = once.task.name
    assert donations_of(program, {1: 0, 2: 1})[name] == {0: 0}
    assert name not in donations_of(replace(program, after=after), {1: 0, 2: 1})


def test_a_value_that_is_read_on_another_stage_is_an_error():
    text = print_module(split(defers=False)).decode()
    moved = text.replace("autoshard.to = 1", "autoshard.to = 0")
    assert moved != text
    module = parse_bytes(moved.encode(), new_context(), "moved")
    with pytest.raises(
        autoshard.PlanError, match=r"@stage1_loop1 runs on stage 1 and reads .* is on stage 0"
    ):
        read_stage_program(module)
