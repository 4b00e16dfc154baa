"""``autoshard-plan`` and ``autoshard-refine``: what the automatic mode does, on a file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import ClassVar, Literal

from autoshard.cluster.corrections import Corrections
from autoshard.errors import PassOptionError, PlanError
from autoshard.ir import mlir, parse_bytes, print_module
from autoshard.ir.attributes import MESH, PLAN
from autoshard.ir.boundary import main_function, untie_unequal
from autoshard.ir.module import take_contents
from autoshard.ir.reading import shape_of
from autoshard.passes.base import Pass
from autoshard.passes.host_offload import HostOffload, may_use_host
from autoshard.passes.memory_limit import user_limit
from autoshard.passes.micro_batch import MicroBatch
from autoshard.passes.optimizer_parallel import OptimizerParallel
from autoshard.passes.pipeline import run_passes
from autoshard.passes.recompute import Recompute
from autoshard.passes.recursive_programming import RecursiveProgramming
from autoshard.passes.undo_checkpoints import UndoCheckpoints
from autoshard.planned.summary import PlanSummary, TriedMicroBatches
from autoshard.search.automatic import ALL_MEMORY, Job, Planned
from autoshard.search.corrections import measured_by
from autoshard.search.host_arguments import plan_with_host
from autoshard.search.host_candidates import candidates
from autoshard.search.micro_batches import choose_micro_batches, divisors, free_step
from autoshard.search.refine import Budget, Refinement, Search, Verify, refine, verifier
from autoshard.search.ways import Way, ways_on
from autoshard.sharding import Axis, Mesh


@dataclass(frozen=True)
class PlanProgram(RecursiveProgramming):
    """Find the fastest plan that fits, with all that saves memory, as autoshard.plan does.

    Searches as ``autoshard-recursive-programming``, as often as it takes: it spreads optimizer
    states, computes values again and keeps arguments in the memory of the host where it is told
    to, or where no plan fits otherwise.
    """

    name: ClassVar[str] = "autoshard-plan"

    optimizer_parallel: int | None = None
    """Spread over the axes that replicate them: 1: optimizer states; 2: gradients, too; 3:
    parameters, too. none: only where the search does so by itself."""

    host_offload: Literal["marks", "auto", "none"] = "marks"
    """What lives in the memory of the host. marks: what is marked; auto: also states and
    parameters, where no plan fits otherwise; none: nothing, marks do not count."""

    recompute: Literal["marks", "auto", "none"] = "marks"
    """What is computed again in the backward half. marks: what is marked; auto: also what makes
    the step fit, or faster; none: the switches of marks are not looked at."""

    policy: Literal["keep", "replace"] = "keep"
    """What becomes of the program's own jax.checkpoint. keep: what it says; replace: it is undone
    first, moves to the host included, so that the options above decide alone."""

    micro_batches: int | Literal["auto"] = 1
    """Parts of the batch, one after the other, as autoshard-micro-batch makes them; auto: the
    number that divides the batch with the fastest step that fits."""

    batch: tuple[str | int, ...] = ()
    """Arguments that hold examples in dim 0, as autoshard-micro-batch takes them."""

    per_micro_batch: tuple[str, ...] = ()
    """Lines (model.py:41) whose sums are those of each micro-batch; see there."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer_parallel is not None:
            OptimizerParallel(level=self.optimizer_parallel)  # says what is wrong with it
        if isinstance(self.micro_batches, str) and self.micro_batches != "auto":
            raise PassOptionError(
                f"{self.name}: option micro-batches={self.micro_batches}: expected integer or auto."
            )
        self._in_parts(1 if self.micro_batches == "auto" else self.micro_batches)

    def run(self, module: mlir.Module) -> None:
        """See ``Pass.run``.

        Raises:
            DoesNotFitError: No plan fits.
        """
        _, planned = self.planned(module)
        untie_unequal(planned.module)
        take_contents(module, planned.module)

    def planned(self, module: mlir.Module) -> tuple[Job, Planned]:
        """The fastest plan that fits, and its job, for a module, which stays as it is.

        Raises:
            DoesNotFitError: No plan fits.
        """
        jobs = lru_cache(partial(self.job_for, module))
        if self.micro_batches != "auto":
            job = jobs(self.micro_batches)
            return job, self.plan_with(job)
        rows, why = self._rows(module)
        examples = math.gcd(*rows)
        found = choose_micro_batches(
            divisors(examples),
            divisors(examples, self.given_cluster().num_devices),
            lambda count: self.plan_with(jobs(count)),
            _costs,
            lambda count: free_step(_costs(_without_limit(jobs(count)).plan())),
            self.most_seconds,
        )
        tried = found.tried + ((TriedMicroBatches(2, "refused", reason=why),) if why else ())
        summary = replace(_costs(found.plan), tried_micro_batches=tried)
        planned = replace(found.plan, summary=summary)
        with planned.module.context:
            written = mlir.StringAttr.get(summary.to_json())
            planned.module.operation.attributes[PLAN] = written
        return jobs(found.count), planned

    def _in_parts(self, count: int) -> MicroBatch:
        lines = self.per_micro_batch if count > 1 else ()
        return MicroBatch(count, self.batch, lines)

    def _rows(self, module: mlir.Module) -> tuple[list[int], str]:
        """Dim 0 of the arguments that hold the batch, or why it is not known: one row."""
        copy = parse_bytes(print_module(module, "bytecode"), module.context, "module")
        with copy.context, mlir.Location.unknown():
            main = main_function(copy)
            try:
                batch = self._in_parts(1).arguments(copy, main)
            except PlanError as error:
                if self.batch:
                    raise
                return [1], str(error)
            arguments = main.regions[0].blocks[0].arguments
            shapes = [shape_of(arguments[number]) for number in batch]
        return [shape[0] if shape else 1 for shape in shapes], ""

    def job_for(self, module: mlir.Module, micro_batches: int = 1) -> Job:
        """What is asked of the search for a module, which stays as it is."""
        cluster = self.given_cluster()
        source = print_module(module, "bytecode")
        before: list[Pass] = [UndoCheckpoints()] if self.policy == "replace" else []
        if micro_batches > 1:
            before.append(self._in_parts(micro_batches))
        if before:
            changed = parse_bytes(source, module.context, "module")
            run_passes(changed, before)
            source = print_module(changed, "bytecode")
        uses_host = may_use_host(source)

        def read(on_host: Sequence[int]) -> mlir.Module:
            copy = parse_bytes(source, module.context, "module")
            if not (on_host or uses_host):
                return copy
            offload = HostOffload(tuple(map(str, on_host)), marks=self.host_offload != "none")
            run_passes(copy, [offload])
            return copy

        level = self.optimizer_parallel
        return Job(
            name=self.name,
            read=read,
            num_devices=cluster.num_devices,
            cluster=cluster,
            options=self,
            spreading=None if level is None else OptimizerParallel(level=level),
            recomputing=self._recomputing(),
            has_limit=bool(self.memory_limit),
        )

    def plan_with(self, job: Job) -> Planned:
        """The plan of a job."""
        if self.host_offload != "auto":
            return job.plan()
        mesh = Mesh((Axis("data", job.num_devices),))
        return plan_with_host(
            job, Job.plan, lambda: candidates(job.read(()), mesh), "argument {}".format
        )

    def _recomputing(self) -> Recompute | None:
        if self.recompute == "none":
            return None
        return Recompute(
            choose=self.recompute,
            host_offload=self.host_offload == "auto",
            memory_limit=self.memory_limit,
            overlap=self.overlap,
            trip_count=self.trip_count,
        )


def _costs(planned: Planned) -> PlanSummary:
    assert planned.summary is not None
    return planned.summary


def _without_limit(job: Job) -> Job:
    """The same search with all the memory there could be, and nothing that saves any."""
    options = replace(job.options, memory_limit=ALL_MEMORY, mem_coeff="auto")
    return replace(job, options=options, recomputing=None)


@dataclass(frozen=True)
class RefineProgram(PlanProgram):
    """Find several plans as autoshard-plan does, compile them, and take the best one.

    The search's own plan is compiled first, and what comes out corrects the costs. Then the fastest
    plans by these follow: the search's own again, and those of meshes of different shapes and of
    the forms that experts write. Each is compiled in a process of its own, for devices that need
    not be here; of those that fit as compiled the one with the shortest step as scheduled is taken.
    Ctrl-C takes the best so far.
    """

    name: ClassVar[str] = "autoshard-refine"

    compiles: int = 4
    """Plans that are compiled."""

    seconds: float | None = None
    """After which no more compiles begin, and those that run are stopped; none: no limit."""

    processes: int | None = None
    """Compilers at a time; none: one for every four cores."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._budget()  # says what is wrong with it

    def run(self, module: mlir.Module) -> None:
        """See ``Pass.run``.

        Raises:
            DoesNotFitError: No plan fits.
            CompileError: The compiler is not installed.
        """
        verify = verifier(self.given_cluster(), trip_count=self.trip_count)
        planned, _ = self.refined(module, verify)
        take_contents(module, planned.module)

    def refined(
        self, module: mlir.Module, verify: Verify, budget: Budget | None = None
    ) -> tuple[Planned, Refinement]:
        """The best of several plans for a module, which stays as it is, and what became of all.

        Args:
            module: Not planned.
            verify: Compiles.
            budget: How much; None: as the options of the pass say.

        Raises:
            DoesNotFitError: No plan fits.
            CompileError: The compiler is not installed.
        """
        cluster = self.given_cluster()
        job, first = self.planned(module)
        untie_unequal(first.module)
        is_free = MESH not in module.operation.attributes and not (self.mesh or self.mesh_shape)
        search = Search(
            partial(self._in_way, job),
            ways_on(cluster) if is_free else (),
            Way(),
            partial(measured_by, cluster=cluster, trip_count=self.trip_count),
            lambda way: way.name,
            user_limit(self.memory_limit),
        )
        return refine(first, search, verify, budget or self._budget())

    def _in_way(self, job: Job, way: Way, corrections: Corrections) -> Planned:
        """The plan of a job in one way, with corrected costs."""
        cluster = replace(self.given_cluster(), corrections=corrections)
        return self.plan_with(way.job(replace(job, cluster=cluster, insists=False)))

    def _budget(self) -> Budget:
        return Budget(self.compiles, self.seconds, self.processes)
