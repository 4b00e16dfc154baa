"""A planned module as a compiler is given it, and what the plan says will come out.

The plan of a pipeline in lockstep is that of one stage; compiled is the program of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autoshard.cluster import Cluster
from autoshard.cluster.stages import cluster_of_a_stage
from autoshard.errors import ClusterError, PlanError
from autoshard.ir import mlir
from autoshard.ir.boundary import Side
from autoshard.planned.given_plan import cost_of_module, summary_on
from autoshard.planned.module import Placement, PlannedModule, read_plan
from autoshard.planned.summarize import argument_name
from autoshard.planned.summary import PlanSummary
from autoshard.rewrites.lockstep.export import over_stages, rows_at, with_stages
from autoshard.rewrites.lockstep.seconds import lockstep_seconds
from autoshard.rewrites.lockstep.step import lockstep_of
from autoshard.rewrites.lockstep.write import Shape
from autoshard.sharding import Mesh, Sharding
from autoshard.sharding.hlo_text import from_hlo
from autoshard.verify.ahead_of_time import CompiledProgram


@dataclass(frozen=True, slots=True)
class Moved:
    """An argument or result that is compiled with another sharding than planned."""

    name: str
    """``params['w']``, ``result 3``."""
    planned: str
    compiled: str
    """HloSharding text."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """Names and shardings of the arguments and results of the entry; what has no plan is None."""

    mesh: Mesh
    """The mesh of all devices."""
    arguments: tuple[tuple[str, Sharding | None], ...]
    results: tuple[tuple[str, Sharding | None], ...]

    def moved(self, program: CompiledProgram) -> tuple[Moved, ...]:
        """Those that the compiler splits in another way."""
        found: list[Moved] = []
        for planned, texts in (
            (self.arguments, program.argument_shardings),
            (self.results, program.result_shardings),
        ):
            # XLA names no sharding, or one for all, where all of them are whole.
            if len(texts) <= 1 and all(text == "{replicated}" for text in texts):
                texts = ("{replicated}",) * len(planned)
            for (name, sharding), text in zip(planned, texts, strict=True):
                if sharding is None:
                    continue
                made = from_hlo(text, self.mesh, sharding.rank)
                if not sharding.same_placement(made):
                    found.append(Moved(name, str(sharding), text))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class WrittenProgram:
    """What a compiler is given of a planned module."""

    export: str
    """The pass that writes it."""
    boundary: Boundary
    predicted: PlanSummary
    """For the cluster that it is compiled for."""


def written_program(
    module: mlir.Module, cluster: Cluster, trip_count: int, *, use_shardy: bool
) -> WrittenProgram:
    """How a planned module is written, and what the plan says of that.

    Args:
        module: Not exported; it stays as it is. Expects its context.
        cluster: All devices.
        trip_count: Assumed trips of loops whose count is not known.
        use_shardy: For Shardy, else for GSPMD.

    Raises:
        PlanError: There is no plan, it does not hold, or a pipeline in lockstep is for GSPMD.
        ClusterError: The mesh has another size than the cluster.
    """
    shape = lockstep_of(module)
    if shape is None:
        return _one_program(module, cluster, trip_count, use_shardy=use_shardy)
    if use_shardy:
        return _all_stages(module, shape, cluster, trip_count)
    raise PlanError(
        "a pipeline in lockstep is written for Shardy alone. Verify it with form='shardy',"
        " --form=shardy."
    )


def _one_program(
    module: mlir.Module, cluster: Cluster, trip_count: int, *, use_shardy: bool
) -> WrittenProgram:
    plan = read_plan(module)
    _check_devices(plan.mesh, cluster)
    return WrittenProgram(
        f"autoshard-export-{'shardy' if use_shardy else 'gspmd'}",
        _boundary(plan, plan.mesh),
        _prediction(module, cluster, trip_count),
    )


def _all_stages(
    module: mlir.Module, shape: Shape, cluster: Cluster, trip_count: int
) -> WrittenProgram:
    """The plan of one stage, for all of them."""
    plan = read_plan(module)
    mesh = with_stages(plan.mesh, shape.stages)
    _check_devices(mesh, cluster)
    stage = cluster_of_a_stage(cluster, shape.stages)
    alone = _prediction(module, stage, trip_count)
    seconds = lockstep_seconds(module, shape, stage, cluster, alone.overlap)
    return WrittenProgram(
        "autoshard-export-lockstep",
        _boundary(plan, mesh),
        seconds.of_all_stages(alone, cluster, mesh),
    )


def _check_devices(mesh: Mesh, cluster: Cluster) -> None:
    if mesh.size != cluster.num_devices:
        raise ClusterError(
            f"the plan is for {mesh.size} devices (mesh {mesh}), the cluster {cluster.name} has"
            f" {cluster.num_devices}. Verify it for one of {mesh.size}, or plan it for"
            f" {cluster.name}."
        )


def _prediction(module: mlir.Module, cluster: Cluster, trip_count: int) -> PlanSummary:
    """The summary that stands on the module, or a new one where that is for another cluster."""
    said = summary_on(module)
    if said is not None and said.read_cluster() == cluster:
        return said
    overlap = 0.0 if said is None else said.overlap
    return cost_of_module(module, cluster, overlap=overlap, trip_count=trip_count).summary


def _boundary(plan: PlannedModule, mesh: Mesh) -> Boundary:
    """The boundary of a plan.

    Args:
        plan: Of a program, or of one stage.
        mesh: Of all devices; along its first axis the stages, where there are more than the plan's.
    """
    (entry,) = [function for function in plan.functions if function.is_entry]

    def shardings(placements: Sequence[Placement | None], side: Side) -> Iterator[Sharding | None]:
        for one, dim in zip(placements, rows_at(entry.op, side), strict=True):
            if one is None or mesh is plan.mesh:
                yield None if one is None else one.sharding
            else:
                yield over_stages(one.sharding, mesh, dim)

    block = entry.op.regions[0].blocks[0]
    names = [argument_name(one, number) for number, one in enumerate(block.arguments)]
    results = [f"result {number}" for number in range(len(entry.results))]
    return Boundary(
        mesh,
        tuple(zip(names, shardings(entry.arguments, "arg_attrs"), strict=True)),
        tuple(zip(results, shardings(entry.results, "res_attrs"), strict=True)),
    )
