"""Seconds of tasks, and the schedule by which micro-batches go through the stages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from autoshard.cluster import Cluster
from autoshard.cluster.topology import Dim
from autoshard.ir import mlir, new_context, parse_bytes, print_module
from autoshard.ir.garbage import no_collection
from autoshard.pipeline.donations import Donated, Donations, donations_of
from autoshard.pipeline.flights import in_flight_bytes
from autoshard.pipeline.layouts import Inside, inside_of_stages, leave_order
from autoshard.pipeline.modules import TaskModules, copy_of, donate, task_module
from autoshard.pipeline.options import Pipeline
from autoshard.pipeline.row_moves import MovedRow, RowMoves
from autoshard.pipeline.task_prices import Machinery, TaskCost, TaskPrices
from autoshard.pipeline.values import StageValue, held_bytes, signature, values_of
from autoshard.planned.given_plan import cost_of_module
from autoshard.rewrites.stage_tasks.numbers import NumberedProgram
from autoshard.rewrites.stage_tasks.program import (
    Call,
    StageProgram,
    Step,
    Transfer,
    is_split,
    read_stage_program,
)
from autoshard.rewrites.stage_tasks.source import SourceProgram
from autoshard.rewrites.stage_tasks.split import SplitProgram, find_tasks
from autoshard.rewrites.stage_tasks.write import split_stages
from autoshard.schedule import gantt as charts
from autoshard.schedule.list_scheduler import Schedule
from autoshard.schedule.rules import Rule, schedule_of_works
from autoshard.schedule.work import Work, passage


@dataclass(frozen=True)
class StagedStep:
    """A step as tasks, with the schedule of those in the loop."""

    program: StageProgram
    rule: Rule
    schedule: Schedule
    """Its works are the calls of the loop."""
    modules: Mapping[str, mlir.Module]
    """Tasks by name: planned, not exported."""
    values: Mapping[int, StageValue]
    """Those of the program, by number."""
    costs: Mapping[str, TaskCost]
    """By name of the task."""
    sent_seconds: Mapping[int, float]
    """Seconds to send each of its values that is sent, to another stage."""
    donated: Donated
    inside: Mapping[str, Inside] = field(default_factory=dict[str, Inside])
    """Where tasks take and give what the compiler lays out as it likes, by name."""
    moves: RowMoves = field(default_factory=RowMoves)
    """What moving rows costs that lie elsewhere between steps."""

    @cached_property
    def donations(self) -> Donations:
        """Which arguments of tasks give their memory to results."""
        return donations_of(self.program, self.donated)

    @cached_property
    def step_seconds(self) -> float:
        """Seconds of a step: before the loop, the schedule, behind the loop."""
        program = self.program
        around = self._around(program.before) + self._around(program.after)
        return around + self.schedule.seconds + self.moves.seconds

    def _around(self, steps: Sequence[Step]) -> float:
        """Seconds of the longest way through steps outside of the loop."""
        ends: dict[int, float] = {}
        free = [0.0] * self.program.stages
        for step in steps:
            if isinstance(step, Transfer):
                ends[step.result] = ends.get(step.operand, 0.0) + self.sent_seconds[step.operand]
                continue
            stage = step.task.stage
            start = max([free[stage], *(ends.get(value, 0.0) for value in step.operands)])
            free[stage] = start + self.costs[step.task.name].seconds
            ends.update(dict.fromkeys(step.results, free[stage]))
        return max([*free, *ends.values()], default=0.0)

    @cached_property
    def peak_bytes(self) -> tuple[float, ...]:
        """Bytes of one device of each stage at the worst moment of a step."""
        return self.peak_bytes_with(self.costs)

    def peak_bytes_with(self, costs: Mapping[str, TaskCost]) -> tuple[float, ...]:
        """As ``peak_bytes``, in the same order, where tasks need other bytes.

        Args:
            costs: By name of the task.
        """
        found = [0.0] * self.program.stages
        for task in self.program.tasks:
            peak = self.kept_bytes[task.name] + costs[task.name].transient_bytes
            found[task.stage] = max(found[task.stage], peak)
        return tuple(map(max, found, self.moves.moving_bytes or found))

    @cached_property
    def kept_bytes(self) -> Mapping[str, float]:
        """Bytes on one device of its stage while a task runs, by its name, at the worst moment.

        What the stage has all the time (arguments, copies of others' arguments, sums, rows that it
        keeps for others), in the loop what it keeps of micro-batches in flight, behind it all that
        is made there, less what takes the memory of donated arguments. What the task takes and
        gives is among it.
        """
        program, values = self.program, self.values
        replacing = {
            step.results[result]
            for step in program.after
            if isinstance(step, Call)
            for result in self.donations.get(step.task.name, {}).values()
        }
        new = [value for value in _made(program.after) if value not in replacing]
        always = self._bytes_by_stage([*program.arguments, *_made(program.before)])
        for stage, kept in enumerate(self.moves.kept_bytes):
            always[stage] += kept
        flights = in_flight_bytes(program, self.schedule, values)
        parts = (
            (program.before, [0.0] * program.stages),
            (program.loop, flights),
            (program.after, self._bytes_by_stage(new)),
        )
        return {
            step.task.name: always[step.task.stage] + more[step.task.stage]
            for steps, more in parts
            for step in steps
            if isinstance(step, Call)
        }

    def _bytes_by_stage(self, values: Sequence[int]) -> list[float]:
        found = [0.0] * self.program.stages
        for value in values:
            found[self.program.stage_of[value]] += self.values[value].local_bytes
        return found

    def with_moves(
        self, arguments: Sequence[MovedRow], results: Sequence[MovedRow], link: Dim
    ) -> StagedStep:
        """The same, whose rows lie elsewhere between steps.

        Args:
            arguments: All parts of arrays of which some lie elsewhere, as arguments of ``main``.
            results: Likewise.
            link: Between stages.
        """
        program, values = self.program, self.values
        seconds, kept, moving = 0.0, [0.0] * program.stages, [0.0] * program.stages
        for rows, of_main in ((arguments, program.arguments), (results, program.results)):
            held = self._bytes_by_stage(of_main)
            sent, taken = [0.0] * program.stages, [0.0] * program.stages
            for one in rows:
                size = values[of_main[one.number]].local_bytes
                held[one.home] += 2 * size
                if one.home != one.stage:
                    sent[one.home] += size
                    taken[one.stage] += size
                if of_main is program.arguments and one.number not in self.donated:
                    kept[one.home] += size
            ways = program.stages - 1
            seconds += ways * link.latency.value + max(*sent, *taken) / link.bandwidth.value
            moving = list(map(max, moving, held))
        return replace(self, moves=RowMoves(seconds, tuple(kept), tuple(moving)))

    def held_bytes(self, name: str) -> float:
        """Bytes on one device of what a task takes and gives; a donated argument counts once."""
        return held_bytes(signature(self.modules[name]), self.donations.get(name, {}))

    def beside_bytes(self, name: str) -> int:
        """Bytes on one device of its stage, at the worst moment, besides what a task takes, gives
        and needs in between."""
        return math.ceil(self.kept_bytes[name] - self.held_bytes(name))

    def work_seconds(self, costs: Mapping[str, TaskCost]) -> tuple[float, ...]:
        """Seconds of one micro-batch on each stage, where tasks take these."""
        found = [0.0] * self.program.stages
        for call in self.program.calls:
            found[call.task.stage] += costs[call.task.name].seconds
        return tuple(found)

    def with_costs(self, costs: Mapping[str, TaskCost]) -> StagedStep:
        """The same tasks, scheduled by the same rule for other costs."""
        schedule = _scheduled(self.rule, self.program, costs, self.sent_seconds)
        return replace(self, costs=costs, schedule=schedule)

    def gantt(self, width: int = 120) -> str:
        """The schedule as text, with its bubble and the bound of all schedules."""
        chart = charts.gantt(self.schedule, width)
        return f"{self.rule}, {chart}"


def staged_steps(
    module: mlir.Module, asked: Pipeline, machinery: Machinery, donated: Donated
) -> tuple[StagedStep, ...]:
    """The step by each of the schedules that are asked for.

    Args:
        module: Planned, with labels of stages; it stays as it is.
        asked: By the user.
        machinery: By what it is timed.
        donated: By the user.

    Raises:
        PlanError: It cannot be split.
    """
    bytecode = print_module(module, "bytecode")
    copy = parse_bytes(bytecode, new_context())
    with copy.context, mlir.Location.unknown(), no_collection():
        numbered, prices = NumberedProgram(SourceProgram(copy)), TaskPrices(machinery)
        found: list[StagedStep] = []
        for rule in asked.rules:
            defers = rule == "zero_bubble"
            split = find_tasks(numbered, defers=defers)
            modules = TaskModules(
                bytecode, [task.name for task in split.program.tasks], defers=defers
            )
            found.append(_priced(split, rule, prices, modules, machinery, donated))
        return tuple(found)


def _priced(
    split: SplitProgram,
    rule: Rule,
    prices: TaskPrices,
    modules: TaskModules,
    machinery: Machinery,
    donated: Donated,
) -> StagedStep:
    program = split.program
    tasks = {one.task.name: one for one in split.tasks}
    signatures = {name: prices.signature(split, one) for name, one in tasks.items()}
    values = values_of(program, prices.main(split), signatures)
    donations = donations_of(program, donated)
    inside = inside_of_stages(program, machinery.stage.compiler)
    costs = {
        name: prices.cost(split, one, signatures[name], donations.get(name, {}), inside.get(name))
        for name, one in tasks.items()
    }
    sent = _sent_seconds(program, values, machinery.whole)
    schedule = _scheduled(rule, program, costs, sent)
    return StagedStep(program, rule, schedule, modules, values, costs, sent, donated, inside)


def fastest_within(steps: Sequence[StagedStep], limit: float) -> StagedStep:
    """The fastest of several schedules of one step whose worst stage needs no more than so many
    bytes of a device; where none does, the one that needs least."""
    fitting = [step for step in steps if max(step.peak_bytes) <= limit]
    if fitting:
        return min(fitting, key=lambda step: step.step_seconds)
    return min(steps, key=lambda step: max(step.peak_bytes))


def step_by_rule(
    module: mlir.Module,
    rule: Rule,
    machinery: Machinery,
    donated: Donated,
) -> StagedStep:
    """The step by one schedule.

    Args:
        module: Planned, with labels of stages; it is split, unless it is split already.
        rule: In which order stages take micro-batches.
        machinery: By what it is timed.
        donated: By the user.

    Raises:
        PlanError: It cannot be split, or is not planned.
    """
    return _step(module, rule, _Costs(machinery), donated)


def _step(module: mlir.Module, rule: Rule, known: _Costs, donated: Donated) -> StagedStep:
    with module.context, mlir.Location.unknown():
        if not is_split(module):
            split_stages(module, defers=rule == "zero_bubble")
        program = read_stage_program(module)
    own = {task.name: task_module(module, task.name) for task in program.tasks}
    signatures = {name: signature(each) for name, each in own.items()}
    values = values_of(program, signature(module), signatures)
    donations = donations_of(program, donated)
    inside = inside_of_stages(program, known.machinery.stage.compiler)
    costs = {
        name: known.of(each, donations.get(name, {}), inside.get(name))
        for name, each in own.items()
    }
    sent = _sent_seconds(program, values, known.machinery.whole)
    schedule = _scheduled(rule, program, costs, sent)
    return StagedStep(program, rule, schedule, own, values, costs, sent, donated, inside)


def _scheduled(
    rule: Rule, program: StageProgram, costs: Mapping[str, TaskCost], sent: Mapping[int, float]
) -> Schedule:
    works = works_of(program, {name: cost.seconds for name, cost in costs.items()}, sent)
    return schedule_of_works(rule, works, program.stages, program.micro_batches, program.chunks)


def _made(steps: Sequence[Step]) -> list[int]:
    return [
        value
        for step in steps
        for value in (step.results if isinstance(step, Call) else (step.result,))
    ]


def works_of(
    program: StageProgram, seconds: Mapping[str, float], sent: Mapping[int, float]
) -> tuple[Work, ...]:
    """The calls of the loop as the scheduler knows them, in their order.

    What a stage keeps of a micro-batch is free behind the task that ends its chunk, or behind what
    that task defers. What one task reads of another stage's task is sent one after the other.

    Args:
        program: The step.
        seconds: Of a task, by name.
        sent: Seconds to send a value.
    """
    calls = program.calls
    makers = {value: number for number, call in enumerate(calls) for value in call.results}
    ways: dict[int, float] = {}
    for transfer in program.transfers:
        if transfer.operand in makers:
            makers[transfer.result] = makers[transfer.operand]
            ways[transfer.result] = ways.get(transfer.operand, 0.0) + sent[transfer.operand]
    waited: dict[int, list[_At]] = {}
    deferring: set[_At] = set()
    for call in calls:
        at = call.task.stage, call.task.level
        if call.task.is_deferred:
            deferring.add(at)
        else:
            waited.setdefault(at[0], []).append(at)
    works: list[Work] = []
    for call in calls:
        task, own = call.task, waited[call.task.stage]
        at = task.stage, task.level
        its = passage(own.index(at), len(own), program.chunks)
        defers = at in deferring and its.name in ("B", "FB")
        name, ahead, kept = its.name, its.ahead, its.ahead + defers
        if task.is_deferred:
            name, ahead, kept = "W" if defers else f"W{name}", 0, -defers
        elif defers and name == "B":
            name = "I"
        moved: dict[int, float] = {}
        for value in dict.fromkeys(call.operands):
            if value in makers:
                maker = makers[value]
                moved[maker] = moved.get(maker, 0.0) + ways.get(value, 0.0)
        after = tuple(sorted(moved))
        own_work = Work(name, task.stage, seconds[task.name], after, ahead, kept, its.chunk)
        own_ways = tuple(moved[maker] for maker in after)
        works.append(replace(own_work, is_deferred=task.is_deferred, moved=own_ways))
    return tuple(works)


_At = tuple[int, int]
"""Stage and level of a task."""


class _Costs:
    """What tasks come to; equal ones, as those of equal layers, are estimated once."""

    def __init__(self, machinery: Machinery) -> None:
        self.machinery = machinery
        self._known: dict[bytes, TaskCost] = {}

    def of(
        self, module: mlir.Module, donated: Mapping[int, int], inside: Inside | None
    ) -> TaskCost:
        """What a task comes to by its module, whose results take the memory of donated arguments.

        Args:
            module: Of the task.
            donated: Which argument gives its memory to which result.
            inside: Where it takes and gives what the compiler lays out as it likes.
        """
        as_compiled = copy_of(module)
        donate(as_compiled, donated)
        leave_order(as_compiled, inside)
        key = print_module(as_compiled)
        if key not in self._known:
            self._known[key] = _cost(as_compiled, donated, self.machinery)
        return self._known[key]


def _cost(module: mlir.Module, donated: Mapping[int, int], machinery: Machinery) -> TaskCost:
    plan = cost_of_module(
        module, machinery.stage, overlap=machinery.overlap, trip_count=machinery.trip_count
    ).plan
    held = held_bytes(signature(module), donated)
    return TaskCost(plan.step_seconds, max(plan.peak_bytes - held, 0.0))


def _sent_seconds(
    program: StageProgram, values: Mapping[int, StageValue], cluster: Cluster
) -> dict[int, float]:
    """Seconds of each transfer over the slowest dim of the whole cluster, by what is sent."""
    operands = {step.operand for step in program.steps if isinstance(step, Transfer)}
    if not cluster.dims:
        return dict.fromkeys(operands, 0.0)
    link = cluster.dims[0]
    return {
        value: link.latency.value + values[value].local_bytes / link.bandwidth.value
        for value in operands
    }
