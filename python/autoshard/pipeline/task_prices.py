"""What tasks of a planned step come to before any of them is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoshard.cluster import Cluster
from autoshard.importer.core_rules import RuleTable
from autoshard.ir import mlir
from autoshard.pipeline.layouts import Inside, leave_order
from autoshard.pipeline.modules import donate, empty_task, lone_task
from autoshard.pipeline.values import Signature, StageValue, held_bytes, signature
from autoshard.planned.given_plan import cost_of_module
from autoshard.rewrites.stage_tasks.split import Given, SplitProgram, SplitTask


@dataclass(frozen=True, slots=True)
class TaskCost:
    """What one run of a task takes on each device of its stage."""

    seconds: float
    transient_bytes: float
    """At its worst moment, besides what it takes and gives."""


@dataclass(frozen=True, slots=True)
class Machinery:
    """By what tasks and transfers are timed."""

    stage: Cluster
    """The devices of one stage."""
    whole: Cluster
    """All devices; its slowest dim lies between stages."""
    overlap: float = 0.0
    """Share of communication inside of a stage that hides behind compute."""
    trip_count: int = 100
    """Assumed trips of loops whose count cannot be read from the program."""


_Key = tuple[
    int,
    tuple[str | None, ...],
    tuple[tuple[int, str | None], ...],
    tuple[tuple[int, int], ...],
    tuple[tuple[int, ...], tuple[int, ...]] | None,
]
"""What a task does, how what it takes is sharded, which of its values it gives and how these are,
what it donates, where it takes and gives what only its stage sees."""


class TaskPrices:
    """Values and tasks of one program; equal tasks, as those of equal layers, are priced once."""

    def __init__(self, machinery: Machinery) -> None:
        self._machinery = machinery
        self._values: dict[tuple[mlir.Type, str | None], StageValue] = {}
        self._costs: dict[_Key, TaskCost] = {}
        self._rules: RuleTable | None = None

    def main(self, split: SplitProgram) -> Signature:
        """What the step takes; of what it gives nothing is asked."""
        numbered = split.source
        taken = [Given(value, numbered.sharding_of(value)) for value in numbered.arguments]
        return Signature(self._side(split, taken), ())

    def signature(self, split: SplitProgram, task: SplitTask) -> Signature:
        """What a task takes and gives."""
        return Signature(self._side(split, task.reads), self._side(split, task.gives))

    def _side(self, split: SplitProgram, side: Sequence[Given]) -> tuple[StageValue, ...]:
        keys: list[tuple[mlir.Type, str | None]] = [
            (split.source.value(one.value).type, one.sharding) for one in side
        ]
        news = [key for key in dict.fromkeys(keys) if key not in self._values]
        if news:
            found = signature(empty_task(split, news)).arguments
            self._values.update(zip(news, found, strict=True))
        return tuple(self._values[key] for key in keys)

    def cost(
        self,
        split: SplitProgram,
        task: SplitTask,
        given: Signature,
        donated: Mapping[int, int],
        inside: Inside | None,
    ) -> TaskCost:
        """What a task comes to whose results take the memory of donated arguments.

        Args:
            split: The program.
            task: One of its tasks.
            given: What it takes and gives.
            donated: Which argument gives its memory to which result.
            inside: Where it takes and gives what the compiler lays out as it likes.
        """
        places = split.source.reader.positions(task.ops, [one.value for one in task.gives])
        key = (
            task.kind,
            tuple(one.sharding for one in task.reads),
            tuple(zip(places, (one.sharding for one in task.gives), strict=True)),
            tuple(sorted(donated.items())),
            None if inside is None else (tuple(inside.operands), tuple(inside.results)),
        )
        if key not in self._costs:
            module = lone_task(split, task)
            donate(module, donated)
            leave_order(module, inside)
            self._costs[key] = self._cost(module, held_bytes(given, donated))
        return self._costs[key]

    def _cost(self, module: mlir.Module, held: float) -> TaskCost:
        machinery = self._machinery
        costed = cost_of_module(
            module,
            machinery.stage,
            overlap=machinery.overlap,
            trip_count=machinery.trip_count,
            rules=self._rules,
        )
        self._rules = costed.imported.rules
        plan = costed.plan
        return TaskCost(plan.step_seconds, max(plan.peak_bytes - held, 0.0))
