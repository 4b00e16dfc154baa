"""Seconds of a step whose stages run one program in lockstep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from autoshard import _core
from autoshard.cluster import Cluster
from autoshard.importer.loops import trip_count
from autoshard.ir import element_bits, mlir
from autoshard.ir.attributes import (
    LOCKSTEP,
    STAGE_EXCHANGE,
    STAGE_GATHER,
    STAGE_PERMUTE,
    STAGE_SUM,
    custom_call_target,
)
from autoshard.ir.boundary import main_function
from autoshard.ir.module import operations_of
from autoshard.ir.reading import element_of, shape_of
from autoshard.planned.collective import Collective
from autoshard.planned.given_plan import Costed, cost_of_module
from autoshard.planned.module import PlannedBlock, PlannedOp, read_plan
from autoshard.planned.summarize import line_of
from autoshard.planned.summary import CollectiveSummary, PlanSummary
from autoshard.rewrites.lockstep.export import with_stages
from autoshard.rewrites.lockstep.write import Shape
from autoshard.sharding import Mesh


@dataclass(frozen=True, slots=True)
class Turns:
    """A loop over layers, in which micro-batches go from stage to stage."""

    count: int
    compute_seconds: float
    """Seconds of one turn on one device, without collectives."""
    sent_seconds: float
    """Seconds in which what is handed on is on its way, a turn."""

    def waited_seconds(self, *, is_hidden: bool) -> float:
        """Seconds of all turns in which stages wait for it; it may travel while they compute."""
        hidden = self.compute_seconds if is_hidden else 0.0
        return self.count * max(self.sent_seconds - hidden, 0.0)


@dataclass(frozen=True)
class LockstepSeconds:
    """What a planned program of one stage takes, and what stages send each other."""

    shape: Shape
    program_seconds: float
    """Seconds of the program of one stage, with the turns without a micro-batch."""
    peak_bytes: float
    """On one device at the worst moment."""
    loops: tuple[Turns, ...]
    around_seconds: float
    """Seconds of the collectives between stages outside of the loops over layers."""
    collectives: tuple[CollectiveSummary, ...]
    """Those between stages, what takes longest first."""
    hides_hops: bool
    """Does the compiler let what is handed on travel meanwhile, where there is a turn for it?"""

    @cached_property
    def waited_seconds(self) -> float:
        """Seconds in which stages wait for each other's values."""
        is_hidden = self.hides_hops and self.shape.delay > 1
        waited = sum(loop.waited_seconds(is_hidden=is_hidden) for loop in self.loops)
        return waited + self.around_seconds

    @cached_property
    def step_seconds(self) -> float:
        """Seconds of a step."""
        return self.program_seconds + self.waited_seconds

    def of_all_stages(self, stage: PlanSummary, whole: Cluster, mesh: Mesh) -> PlanSummary:
        """What a step of all stages costs.

        Args:
            stage: What the program of one stage costs, without what stages send each other.
            whole: All devices.
            mesh: Of all of them.
        """
        sent = sum(one.seconds or 0.0 for one in self.collectives)
        scheduled, least = stage.scheduled_seconds, stage.all_hidden_seconds
        both = (*stage.collectives, *self.collectives)
        return replace(
            stage,
            step_seconds=self.step_seconds,
            peak_bytes_per_device=self.peak_bytes,
            communication_seconds=stage.communication_seconds + sent,
            scheduled_seconds=None if scheduled is None else scheduled + self.waited_seconds,
            all_hidden_seconds=None if least is None else max(least, sent),
            collectives=tuple(sorted(both, key=lambda one: -(one.seconds or 0.0))),
            cluster=whole.name,
            cluster_toml=None if whole.is_named else whole.to_toml(),
            mesh=str(mesh),
            devices=whole.num_devices,
        )

    @property
    def bubble(self) -> float:
        """The share of a loop over layers in which a stage waits: of ``S`` stages and ``M``
        micro-batches ``(S - 1) / (M + S - 1)``, with a delay of 2 twice as many turns of each."""
        waits = self.shape.delay * (self.shape.stages - 1)
        return waits / (self.shape.micro_batches + waits)

    @property
    def may_gain_by_delay(self) -> bool:
        """Whether what is handed on could take longer than the turns that a delay adds."""
        if not self.hides_hops or self.shape.delay > 1:
            return False
        waited = sum(loop.waited_seconds(is_hidden=False) for loop in self.loops)
        added = sum((self.shape.stages - 1) * loop.compute_seconds for loop in self.loops)
        return waited > added


def lockstep_seconds(
    module: mlir.Module, shape: Shape, stage: Cluster, whole: Cluster, overlap: float
) -> LockstepSeconds:
    """Seconds of a planned program of one stage.

    Args:
        module: Planned, not exported; it stays as it is.
        shape: How it is in lockstep.
        stage: The devices of one stage.
        whole: All devices; stages lie along its slowest dims.
        overlap: Share of communication inside of a stage that hides behind compute.
    """
    costed = cost_of_module(module, stage, overlap=overlap)
    hides = whole.compiler.does("schedule.hides_hops")
    with module.context:
        mesh = with_stages(costed.mesh, shape.stages)
        calls = list(_calls(module, _Links(whole, mesh)))
        compute = _compute_seconds(module, costed)
        loops = tuple(
            Turns(
                shape.turns,
                compute.get(loop, 0.0) / shape.turns,
                sum(one.seconds for one in calls if one.is_handed_on and one.loop == loop),
            )
            for loop in _loops_over_layers(module)
        )
        is_hidden = hides and shape.delay > 1
        return LockstepSeconds(
            shape,
            costed.step_seconds,
            costed.peak_bytes,
            loops,
            sum(one.times * one.seconds for one in calls if not one.is_handed_on),
            _summaries(calls, mesh.axis_names[0], loops, is_hidden=is_hidden),
            hides,
        )


def _loops_over_layers(module: mlir.Module) -> list[mlir.Operation]:
    """Loops of ``main`` in which micro-batches go from stage to stage."""
    return [
        op.operation
        for op in main_function(module).regions[0].blocks[0].operations
        if op.operation.name == "stablehlo.while"
        and any(LOCKSTEP in inner.attributes for inner in operations_of(op.operation))
    ]


def _compute_seconds(module: mlir.Module, costed: Costed) -> dict[mlir.Operation, float]:
    """Seconds of all turns of each loop of ``main``, without collectives."""
    main = main_function(module)
    found: dict[mlir.Operation, float] = {}
    trips = costed.imported.program.op_trips
    for op, seconds, times in zip(
        costed.imported.core_ops, costed.plan.op_seconds, trips, strict=True
    ):
        at = op
        while at.parent is not None and at.parent.operation != main:
            at = at.parent.operation
        found[at] = found.get(at, 0.0) + seconds * times
    return found


@dataclass(frozen=True, slots=True)
class _Call:
    """What stages send each other at one place of the program."""

    op: mlir.Operation
    kind: _core.CollectiveKind
    participants: int
    held_bytes: float
    """Bytes that a device has before it."""
    seconds: float
    """Seconds of one run."""
    loop: mlir.Operation | None
    """The loop of ``main`` that it stands in."""
    times: int
    """Runs in a step."""

    @property
    def is_handed_on(self) -> bool:
        """Whether it is what a stage hands on in every turn."""
        return self.kind is _core.CollectiveKind.PERMUTE and self.loop is not None


def _calls(module: mlir.Module, links: _Links) -> Iterator[_Call]:
    """Those of a planned program of one stage, in program order."""

    def walk(block: PlannedBlock, loop: mlir.Operation | None, times: int) -> Iterator[_Call]:
        for planned in block.ops:
            kind = _KINDS.get(str(custom_call_target(planned.op)))
            if kind is not None:
                yield links.call(planned, kind, loop, times)
            counted = trip_count(planned.op, lambda value: value) if _is_loop(planned.op) else 1
            for inner in planned.blocks:
                yield from walk(inner, loop or planned.op, times * (counted or 1))

    for function in read_plan(module).functions:
        if function.is_entry:
            yield from walk(function.body, None, 1)


def _summaries(
    calls: Sequence[_Call], axis: str, loops: Sequence[Turns], *, is_hidden: bool
) -> tuple[CollectiveSummary, ...]:
    """The calls as collectives over the axis of the stages.

    Of what is handed on, what is waited for in all loops is shared by seconds.
    """
    handed = sum(one.times * one.seconds for one in calls if one.is_handed_on)
    waited = sum(loop.waited_seconds(is_hidden=is_hidden) for loop in loops)
    found: list[CollectiveSummary] = []
    for one in calls:
        seconds = one.times * one.seconds
        exposed = seconds * waited / handed if one.is_handed_on and handed else seconds
        unit = Collective(one.kind, (), one.participants, one.held_bytes)
        found.append(
            CollectiveSummary(
                kind=one.kind.value,
                axes=(axis,),
                bytes=unit.moved_bytes,
                times=one.times,
                seconds=seconds,
                location=line_of(one.op),
                exposed_seconds=exposed,
            )
        )
    return tuple(sorted(found, key=lambda one: -(one.seconds or 0.0)))


def _is_loop(op: mlir.Operation) -> bool:
    return op.name == "stablehlo.while"


_KINDS = {
    STAGE_PERMUTE: _core.CollectiveKind.PERMUTE,
    STAGE_SUM: _core.CollectiveKind.ALL_REDUCE,
    STAGE_GATHER: _core.CollectiveKind.ALL_GATHER,
    STAGE_EXCHANGE: _core.CollectiveKind.ALL_TO_ALL,
}


class _Links:
    """Collectives between stages, by the formulas of those inside of stages."""

    def __init__(self, whole: Cluster, mesh: Mesh) -> None:
        """Take the first axis of the mesh of all devices as that of the stages."""
        self.stages, *_ = self.sizes = [size for size in mesh.axis_sizes if size > 1]
        self.core = whole.to_core(mesh)

    def call(
        self,
        planned: PlannedOp,
        kind: _core.CollectiveKind,
        loop: mlir.Operation | None,
        times: int,
    ) -> _Call:
        """A call between stages, so many times in a step."""
        value, placement = planned.op.operands[0], planned.operands[0]
        shape = shape_of(value)
        held = element_bits(element_of(value)) / 8
        for length in shape if placement is None else placement.sharding.local_shape(shape):
            held *= length
        participants = 2 if kind is _core.CollectiveKind.PERMUTE else self.stages
        step = _core.Step(kind, 1, participants, held)
        seconds = _core.collective_seconds(step, self.core, self.sizes)
        return _Call(planned.op, kind, participants, held, seconds, loop, times)
