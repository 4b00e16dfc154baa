"""What a step in stages needs, for the program of the lit test: two stages, two micro-batches."""

import numpy as np
import pytest
from test_instructions import scheduled

from autoshard.pipeline.flights import in_flight_bytes
from autoshard.pipeline.order import StagedStep
from autoshard.pipeline.task_prices import TaskCost
from autoshard.pipeline.values import StageValue
from autoshard.schedule.list_scheduler import Limits, list_schedule
from autoshard.schedule.rules import rank_of
from autoshard.sharding import Axis, Mesh, Sharding

WHOLE = Sharding.fully_replicated(Mesh((Axis("one", 1),)), 2)
WEIGHTS = StageValue((4, 4), np.float32, WHOLE, 64.0)
NOTHING = StageValue((0, 4), np.float32, WHOLE, 0.0)


def step_with(donated):
    """Arguments, sums and updates have 64 bytes each, what micro-batches make has none."""
    program, _, schedule = scheduled("1f1b")
    in_loop = {value for call in program.calls for value in call.results}
    in_loop |= {transfer.result for transfer in program.transfers}
    values = {
        number: NOTHING if number in in_loop else WEIGHTS for number in range(len(program.stage_of))
    }
    costs = {task.name: TaskCost(1.0, 0.0) for task in program.tasks}
    return StagedStep(program, "1f1b", schedule, {}, values, costs, 0.0, donated)


@pytest.mark.parametrize(
    ("donated", "tensors"),
    [({}, (4, 3)), ({1: 0}, (3, 3)), ({1: 0, 2: 1}, (3, 2)), ({0: None}, (4, 3))],
)
def test_results_count_where_they_do_not_take_the_memory_of_donated_arguments(donated, tensors):
    # On stage 0: the batch, its weights, the sum of their gradients, the new weights.
    assert step_with(donated).peak_bytes == tuple(64 * count for count in tensors)


def test_what_is_in_flight_is_counted_run_by_run():
    # Stage 0 makes what it keeps and what it sends, which is gone when it is sent; it gets a
    # gradient back. Stage 1 gets that, and makes the gradient.
    program, works, schedule = scheduled("1f1b")
    values = dict.fromkeys(range(len(program.stage_of)), WEIGHTS)
    assert [(run.work, run.micro_batch) for run in schedule.runs[:3]] == [(0, 0), (0, 1), (1, 0)]
    assert in_flight_bytes(program, schedule, values) == (3 * 64, 3 * 64)
    alone = list_schedule(works, 2, rank_of(works, 2), limits=Limits((1, 1)))
    assert in_flight_bytes(program, alone, values) == (2 * 64, 2 * 64)
