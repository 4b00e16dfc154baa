"""The pass ``autoshard-plan``: what ``autoshard.plan`` does in the automatic mode, on a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from autoshard.ir import mlir, parse_bytes, print_module
from autoshard.ir.boundary import untie_unequal
from autoshard.ir.module import take_contents
from autoshard.passes.host_offload import HostOffload
from autoshard.passes.optimizer_parallel import OptimizerParallel
from autoshard.passes.pipeline import run_passes
from autoshard.passes.recompute import Recompute
from autoshard.passes.recursive_programming import RecursiveProgramming
from autoshard.search.automatic import Job, plan_with_host
from autoshard.search.host_candidates import candidates
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer_parallel is not None:
            OptimizerParallel(level=self.optimizer_parallel)  # says what is wrong with it

    def run(self, module: mlir.Module) -> None:
        """See ``Pass.run``.

        Raises:
            DoesNotFitError: No plan fits.
        """
        cluster = self.given_cluster()
        source = print_module(module, "bytecode")

        def read(on_host: Sequence[int]) -> mlir.Module:
            copy = parse_bytes(source, module.context, "module")
            offload = HostOffload(tuple(map(str, on_host)), marks=self.host_offload != "none")
            run_passes(copy, [offload])
            return copy

        level = self.optimizer_parallel
        job = Job(
            name=self.name,
            read=read,
            num_devices=cluster.num_devices,
            cluster=cluster,
            options=self,
            spreading=None if level is None else OptimizerParallel(level=level),
            recomputing=self._recomputing(),
            has_limit=bool(self.memory_limit),
        )
        mesh = Mesh((Axis("data", cluster.num_devices),))
        planned = (
            plan_with_host(job, job.plan, lambda: candidates(read(()), mesh), "argument {}".format)
            if self.host_offload == "auto"
            else job.plan()
        )
        untie_unequal(planned.module)
        take_contents(module, planned.module)

    def _recomputing(self) -> Recompute | None:
        if self.recompute == "none":
            return None
        return Recompute(
            choose=self.recompute,
            memory_limit=self.memory_limit,
            overlap=self.overlap,
            trip_count=self.trip_count,
        )
