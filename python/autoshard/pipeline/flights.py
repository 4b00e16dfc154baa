"""Bytes that stages keep of micro-batches on their way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from autoshard.pipeline.values import StageValue
from autoshard.rewrites.stage_tasks.program import StageProgram, Transfer
from autoshard.schedule.list_scheduler import Schedule


def in_flight_bytes(
    program: StageProgram, schedule: Schedule, values: Mapping[int, StageValue]
) -> tuple[float, ...]:
    """Bytes on one device of each stage at the worst moment of the loop, of what is made there.

    Runs follow one another as the host dispatches them. A value is there from the run that makes
    it, what is sent from then on also on the other stage, until the last run that reads it. Sums
    are not counted: they take the memory of those before them.

    Args:
        program: Its tasks and transfers.
        schedule: Its works are the calls of the loop.
        values: Those of the program.
    """
    sums = {one.update for one in program.carried}
    sent: dict[int, list[Transfer]] = {}
    for transfer in program.transfers:
        sent.setdefault(transfer.operand, []).append(transfer)
    readers = Counter(value for call in program.calls for value in set(call.operands))
    left: dict[tuple[int, int], int] = {}
    now, most = [0.0] * program.stages, [0.0] * program.stages

    def make(value: int) -> None:
        stage = program.stage_of[value]
        now[stage] += values[value].local_bytes
        most[stage] = max(most[stage], now[stage])

    def free(value: int) -> None:
        now[program.stage_of[value]] -= values[value].local_bytes

    for run in schedule.runs:
        call = program.calls[run.work]
        made = [value for value in call.results if value not in sums]
        for value in made:
            make(value)
        arrived = [one.result for value in call.results for one in sent.get(value, ())]
        for value in arrived:
            make(value)
        for value in (*made, *arrived):
            if readers[value]:
                left[value, run.micro_batch] = readers[value]
            else:
                free(value)
        for value in set(call.operands):
            at = value, run.micro_batch
            if at in left:
                left[at] -= 1
                if not left[at]:
                    del left[at]
                    free(value)
    return tuple(most)
