"""Plans of pipelines in lockstep: the program of one stage is planned, and read as that of all.

before  step(params = {"w": float32[8, 4, 4]}, x): one loop of 8 trips
planned step(params = {"w": float32[4, 4, 4]}, x): loops of turns around one loop of 4
after   the plan of the step, whose array "w" lies half on one stage and half on the other
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

import jax

from autoshard.errors import PlanError
from autoshard.frontend.batch import batch_split
from autoshard.frontend.batch_arrays import arrays_of_batch, no_batch, places_of
from autoshard.frontend.fingerprint import LoweredProgram
from autoshard.frontend.layer_parts import one_stage
from autoshard.frontend.lower import Source, whole_cluster
from autoshard.frontend.plan import Plan, PlannedValue
from autoshard.frontend.planned_lockstep import LockstepPipeline, lockstep_pipeline
from autoshard.frontend.request import Request
from autoshard.ir import new_context, parse_bytes, print_module
from autoshard.ir.boundary import main_function, say_trips
from autoshard.passes.lockstep import Lockstep
from autoshard.pipeline.options import Pipeline
from autoshard.planned.summary import BatchSplit
from autoshard.rewrites.lockstep.export import Rows, rows_at

_tree: Any = jax.tree_util


@dataclass(frozen=True, slots=True)
class InLockstep:
    """A step as it is planned, and as the user knows it."""

    whole: Source
    source: Source
    """The program of one stage."""
    arguments: Rows
    """The dim of each flat argument of which a stage has its own rows."""
    results: Rows
    batch: tuple[int, ...]
    """Flat arguments that hold the batch."""

    @staticmethod
    def of(source: Source, request: Request, delay: int) -> InLockstep:
        """The step as the program of one stage.

        Raises:
            PlanError: It cannot be in lockstep, or nobody knows which arguments hold the batch.
        """
        bytecode = (
            source.program.bytecode if request.policy == "keep" else source.without_checkpoints
        )
        module = parse_bytes(bytecode, new_context(), source.name)
        batch, places = arrays_of_batch(source, module, request.batch_argnums), places_of(source)
        if not batch:
            raise PlanError(no_batch(source, request))
        asked = cast(Pipeline, request.stages)
        bytecode, rows, results = _one_stage(
            bytecode,
            Lockstep(
                asked.stages,
                asked.micro_batches,
                tuple(str(places[number]) for number in batch),
                tuple(request.per_micro_batch),
                delay,
            ),
            request.trip_count,
            source.name,
        )
        infos = _tree.tree_leaves(cast(Any, source.program.stage).args_info)
        arguments = tuple(
            rows[places[number]] if number in places else None for number in range(len(infos))
        )
        return InLockstep(
            source,
            one_stage(source, bytecode, asked.stages, arguments, results),
            arguments,
            results,
            tuple(batch),
        )

    def plan(self, request: Request, plan_once: Callable[[Source, Request], Plan]) -> Plan:
        """Plan the program of a stage, and read the plan as one of the whole."""
        return self.of_all_stages(plan_once(self.source, of_a_stage(request)), request)

    def of_all_stages(self, plan: Plan, request: Request) -> Plan:
        """The plan of the program of a stage, as one of the whole.

        Args:
            plan: Of ``source``.
            request: With the pipeline.
        """
        asked = cast(Pipeline, request.stages)
        stage: Any = self.whole.program.stage
        types = _tree.tree_leaves(stage.args_info), _tree.tree_leaves(stage.out_info)
        arguments = _whole_values(plan.arguments, types[0], self.arguments, asked.stages)
        pipeline = lockstep_pipeline(plan, asked, whole_cluster(request), request.overlap)
        return replace(
            plan,
            arguments=arguments,
            results=_whole_values(plan.results, types[1], self.results, asked.stages),
            made_for=LoweredProgram.of(self.whole),
            batch=self._batch(arguments, asked.micro_batches, request),
            pipeline=pipeline,
        )

    def _batch(
        self, arguments: Sequence[PlannedValue], count: int, request: Request
    ) -> BatchSplit | None:
        rows = [arguments[number].shape[0] for number in self.batch]
        cuts = [arguments[number].sharding.num_shards(0) for number in self.batch]
        found = batch_split(rows, cuts, count)
        if found is None:
            return None
        lines = tuple(request.per_micro_batch)
        return replace(found, micro_batches=count, per_micro_batch=lines)


def planned_in_lockstep(
    source: Source, request: Request, plan_once: Callable[[Source, Request], Plan]
) -> Plan:
    """The faster of plans in which a stage goes on one turn, or two, after the one before it.

    Args:
        source: The step, lowered for the devices of a stage.
        request: With a pipeline in lockstep.
        plan_once: Plans a program without stages.

    Raises:
        PlanError: The step cannot be in lockstep.
        DoesNotFitError: No plan fits.
    """
    best = InLockstep.of(source, request, 1).plan(request, plan_once)
    if not cast(LockstepPipeline, best.pipeline).seconds.may_gain_by_delay:
        return best
    other = InLockstep.of(source, request, 2).plan(request, plan_once)
    return min(best, other, key=lambda plan: plan.step_seconds)


def of_a_stage(request: Request) -> Request:
    """What is asked of the plan of the program of one stage."""
    return replace(request, pipeline=None, micro_batches=1, per_micro_batch=())


@lru_cache(maxsize=4)
def _one_stage(
    bytecode: bytes, step: Lockstep, trip_count: int | None, name: str
) -> tuple[bytes, Rows, Rows]:
    """The program of one stage, and which arguments and results of ``main`` have rows of it."""
    module = parse_bytes(bytecode, new_context(), name)
    say_trips(module, trip_count)
    step.run(module)
    with module.context:
        main = main_function(module)
        rows = rows_at(main, "arg_attrs"), rows_at(main, "res_attrs")
    return print_module(module, "bytecode"), *rows


def _whole_values(
    values: Sequence[PlannedValue], types: Sequence[Any], rows: Rows, stages: int
) -> tuple[PlannedValue, ...]:
    return tuple(
        replace(
            value,
            shape=tuple(type_.shape),
            stage_cut=None if dim is None else (dim, stages),
        )
        for value, type_, dim in zip(values, types, rows, strict=True)
    )
