"""From a described cluster, and pins if there are any, to the plan with the fastest step.

before  %1 = stablehlo.dot_general %x, %w ..
after   autoshard.mesh = "data=4,model=4" and autoshard.plan on the module,
        %1 = stablehlo.dot_general %x, %w .. {
            autoshard.strategy = "[{data}, {}], [{}, {model}] -> [{data}, {model}]",
            mhlo.sharding = "{devices=[4,4]<=[16]}"}

The search is in passes/planning/recursive_programming.h.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

from autoshard import _core
from autoshard.cluster import Cluster
from autoshard.errors import (
    AutoshardError,
    PassOptionError,
    PlanError,
)
from autoshard.importer.imported_program import ImportedProgram
from autoshard.importer.pins import Pinned
from autoshard.importer.program import import_program
from autoshard.ir import mlir
from autoshard.ir.attributes import MESH, PIPELINE_STAGES, PLAN
from autoshard.ir.boundary import allow_all_to_all, pad_indivisible
from autoshard.ir.equal_ops import join_equal_ops
from autoshard.ir.garbage import no_collection
from autoshard.passes.base import Pass, no_cluster
from autoshard.passes.checked_search import check_size, explained, set_mesh
from autoshard.passes.import_strategies import ReadModule, import_strategies
from autoshard.passes.memory_limit import memory_limit_of, read_bytes_text
from autoshard.passes.mesh_shape import mesh_of_shape
from autoshard.passes.phase_clock import PhaseClock
from autoshard.passes.search_progress import shown_search
from autoshard.passes.symbolic import DEFAULT_MEM_COEFF, search_symbolic
from autoshard.planned.axis_names import describe_axes, name_axes
from autoshard.planned.given_plan import Costed, cost_of_module
from autoshard.planned.idle_axes import warn_of_idle_axes
from autoshard.planned.manual import with_bodies
from autoshard.planned.summarize import summarize
from autoshard.planned.summary import PlanSummary
from autoshard.planned.symbolic_costs import SymbolicCosts
from autoshard.planned.write import (
    mesh_of,
    populate_rules,
    remove_rules,
    write_plan,
)
from autoshard.rewrites.gradient_order import bound_gradients
from autoshard.sharding import Axis, Mesh

_SHAPE = re.compile(r"[1-9]\d*(x[1-9]\d*)*")

Coefficient = float | Literal["auto"]


@dataclass(frozen=True)
class RecursiveProgramming(Pass):
    """Find the plan with the fastest step within the memory of a device.

    Does what ``autoshard-import-strategies`` does first; pins are kept. Without a mesh, on the
    module or as an option, it makes one from the cluster's axes and names it after what its axes
    cut. The summary of the plan goes to the module's ``autoshard.plan``.
    """

    name: ClassVar[str] = "autoshard-recursive-programming"

    cluster: str = ""
    """What the program runs on: v5p:4x4x4, h100:4x8, cpu:8, .. or a TOML file."""

    compiler: str = ""
    """Another compiler than the installed one for the chips: xla-tpu-0.0.42, unknown, .., with
    :without=RULE,RULE behind to switch rules off; docs/design/compilers.md lists both."""

    mesh: str = ""
    """The mesh, dp=2,tp=4; else the module's own, else one that the search makes."""

    mesh_shape: str = ""
    """Sizes of the axes of the mesh that the search makes, 2x4; else it chooses them, too."""

    mem_coeff: Coefficient = "auto"
    """Price of memory: 1 is the time to read a byte of the peak once; in the symbolic cost it is
    that of its formulas. auto: the smallest price whose plan fits; 0.1 in the symbolic cost."""

    memory_limit: str = ""
    """What a plan may use of a device, 14GiB or bytes; usually the chip's memory less 8%."""

    cost_model: Literal["seconds", "symbolic"] = "seconds"
    """seconds: a time for every op and collective; symbolic: relative costs without a unit."""

    overlap: float = 0.0
    """Share of communication that hides behind compute, 0 to 1."""

    enable_alltoall: bool = True
    """Reshard by all-to-alls, too; false: by gathers, slices and permutes only."""

    indivisible: Literal["refuse", "pad"] = "refuse"
    """What to do with dims that have not as many equal parts as there are devices; pad: cut them
    inside of the program, where XLA pads. A module that says pad already keeps that."""

    time_limit: float | None = None
    """Seconds after which the search tries nothing more and takes the best plan so far."""

    sweeps: int = 2
    """Rounds over the levels of the mesh after the first one."""

    joint: bool = True
    """Decide several levels together where that is small enough."""

    fold: bool = True
    """Solve equal layers once."""

    trip_count: int = 100
    """Assumed trips of loops whose count cannot be read from the program."""

    seed: int = 0
    """Seed of the search's random choices."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for option, value, wanted, holds in (
            ("trip-count", self.trip_count, "0 or more", self.trip_count >= 0),
            ("sweeps", self.sweeps, "0 or more", self.sweeps >= 0),
            ("seed", self.seed, "0 or more", self.seed >= 0),
            ("overlap", self.overlap, "0 to 1", 0 <= self.overlap <= 1),
            (
                "time-limit",
                self.time_limit,
                "none, or more than 0",
                self.time_limit is None or self.time_limit > 0,
            ),
            ("mem-coeff", self.mem_coeff, "auto, or 0 or more", _is_price(self.mem_coeff)),
            (
                "cost-model",
                self.cost_model,
                "seconds or symbolic",
                self.cost_model in ("seconds", "symbolic"),
            ),
        ):
            if not holds:
                raise PassOptionError(
                    f"{self.name}: option {option}={value} is out of range. Give {wanted}."
                )
        if self.memory_limit:
            read_bytes_text(self.memory_limit, f"{self.name}: option memory-limit")
        if self.mesh_shape and (self.mesh or not _SHAPE.fullmatch(self.mesh_shape)):
            raise PassOptionError(
                f"{self.name}: option mesh-shape={self.mesh_shape}: expected sizes such as 2x4, and"
                " no mesh beside them."
            )
        if self.mesh:
            try:
                Mesh.parse(self.mesh)
            except AutoshardError as error:
                raise PassOptionError(
                    f"{self.name}: option mesh={self.mesh}: {error.message}"
                ) from error

    def run(self, module: mlir.Module) -> None:
        """See ``Pass.run``."""
        plan_automatically(module, self.given_cluster(), self)

    @property
    def most_seconds(self) -> float:
        """What the search may take; infinite where it ends by itself."""
        return math.inf if self.time_limit is None else self.time_limit

    def given_cluster(self) -> Cluster:
        """What the program runs on.

        Raises:
            PassOptionError: No cluster is given.
            ClusterError: Nobody knows it.
        """
        if not self.cluster:
            raise no_cluster(self.name)
        return Cluster.of(self.cluster, self.compiler)


def plan_automatically(
    module: mlir.Module, cluster: Cluster, options: RecursiveProgramming
) -> PlanSummary:
    """What the pass does, for a cluster that has no name.

    Raises:
        DoesNotFitError: No plan fits the memory.
        StrategyError: Pins that no plan keeps.
        ShardingError: The module's mesh has not as many devices as the cluster.
    """
    return search_module(module, cluster, options).summary


@dataclass(frozen=True)
class PlannedProgram:
    """A planned module and all it takes to plan it again with other pins."""

    module: mlir.Module
    imported: ImportedProgram
    plan: _core.CorePlan
    mesh: Mesh
    """Mesh of the plan."""
    cluster: Cluster
    options: RecursiveProgramming
    summary: PlanSummary
    names_mesh: bool = False
    """Is the mesh the plan's own, so that it goes to the module with it?"""
    stages: int = 1
    """Stages of a pipeline that share the memory it was searched within."""

    @property
    def limited_bytes(self) -> float:
        """What the search held to its limit: the peak of a device, or that of one in a stage, times
        the stages."""
        if self.stages == 1:
            return self.summary.peak_bytes_per_device
        return self.stages * self.plan.limited_bytes

    def costed(self) -> Costed:
        """The plan with its costs, as the search knows them.

        ``cost_of_module`` may find others: within a limit of memory the search gathers weights
        again in the backward half, of which the module says nothing.
        """
        mesh = self.mesh.without_unit_axes()
        imported = self.imported.changed(mesh, self.imported.pins)
        return Costed(imported, self.plan, mesh, self.cluster)


def search_module(
    module: mlir.Module, cluster: Cluster, options: RecursiveProgramming
) -> PlannedProgram:
    """As ``plan_automatically``, with what ``replan_module`` needs."""
    return write_planned(read_module(module, cluster, options).searched(options))


@dataclass(frozen=True)
class ReadProgram:
    """A module that was read for searches; nothing is planned on it yet."""

    module: mlir.Module
    imported: ImportedProgram
    cluster: Cluster
    has_mesh: bool
    """Is the mesh the user's? Else each plan names its own."""
    seconds: Mapping[str, float]
    """By phase."""

    @property
    def stages(self) -> int:
        """Those of the pipeline that the module is cut for; 1: it is for none."""
        found = self.module.operation.attributes.get(PIPELINE_STAGES)
        return 1 if found is None else mlir.IntegerAttr(found).value

    def searched(
        self, options: RecursiveProgramming, most_seconds: float = math.inf, stages: int = 1
    ) -> PlannedProgram:
        """What the search finds; the module stays as it is.

        Args:
            options: Those that it was read with, or others of the search itself, as the limit of
                memory.
            most_seconds: Plans of slower steps are of no use.
            stages: Those that have an equal part of the memory each, and of what lives in no trip
                of a loop.

        Raises:
            DoesNotFitError: No plan fits the memory.
            StrategyError: Pins that no plan keeps.
        """
        clock, imported, cluster = PhaseClock(dict(self.seconds)), self.imported, self.cluster
        limit = memory_limit_of(cluster, options.memory_limit)
        with self.module.context, mlir.Location.unknown(), no_collection():
            with clock.phase("search"):
                may_merge = not self.has_mesh and not options.mesh_shape
                climbs = self.stages > 1
                found = _search(
                    imported,
                    cluster,
                    options,
                    limit,
                    may_merge,
                    all_prices=climbs,
                    most_seconds=most_seconds,
                    stages=stages,
                )
            clock.split("search", found.phases)
            with clock.phase("write"):
                if self.has_mesh:
                    mesh = imported.mesh
                    axes = describe_axes(imported, found.plan, cluster.covered_in_order(mesh))
                else:
                    mesh, axes = name_axes(imported, found.plan)
                summary = summarize(Costed(imported, found.plan, mesh, cluster), axes)
            summary = replace(
                summary, symbolic_costs=found.symbolic_costs, planning_seconds=clock.seconds
            )
            summary = _as_asked(summary, options, limit)
        return PlannedProgram(
            self.module,
            imported,
            found.plan,
            mesh,
            cluster,
            options,
            summary,
            names_mesh=not self.has_mesh,
            stages=stages,
        )


def read_module(
    module: mlir.Module, cluster: Cluster, options: RecursiveProgramming
) -> ReadProgram:
    """Read a module for searches on a cluster; pins and the mesh go to the module.

    Raises:
        StrategyError: Pins that no plan keeps.
        ShardingError: The module's mesh has not as many devices as the cluster.
    """
    clock = PhaseClock()
    with module.context, mlir.Location.unknown(), no_collection():
        if options.indivisible == "pad":
            pad_indivisible(module)
        with clock.phase("strategies"):
            join_equal_ops(module)
            read = _read_strategies(module, cluster, options)
            mesh = mesh_of(module)
            check_size(mesh, cluster, module)
            allow_all_to_all(module, options.enable_alltoall)
            operations = bound_gradients(module, cluster, read.operations)
        with clock.phase("rules"):
            populate_rules(module)
        with clock.phase("import"):
            imported = import_program(
                module,
                mesh,
                unknown_trip_count=options.trip_count,
                operations=operations,
                compiler=cluster.compiler,
            )
            remove_rules(module)
            imported = with_bodies(imported, cluster)
    return ReadProgram(module, imported, cluster, not read.has_default_mesh, clock.seconds)


def write_planned(planned: PlannedProgram) -> PlannedProgram:
    """Write a plan to its module, over what stands there of another one; with the seconds it took.

    The mesh of the plan is the module's then.
    """
    clock, module = PhaseClock(dict(planned.summary.planning_seconds)), planned.module
    with module.context, mlir.Location.unknown(), no_collection():
        with clock.phase("write"):
            if planned.names_mesh:
                module.operation.attributes[MESH] = mlir.StringAttr.get(str(planned.mesh))
            write_plan(module, planned.imported, planned.plan, planned.mesh)
            warn_of_idle_axes(planned.module, planned.imported, planned.plan, planned.mesh)
        return _timed(planned, clock)


def search_imported(
    imported: ImportedProgram,
    module: mlir.Module,
    cluster: Cluster,
    options: RecursiveProgramming,
) -> PlannedProgram:
    """What the search finds for a program that was read before, on another cluster.

    Args:
        imported: Without pins of the user, so that no axis means anything.
        module: That it was read from, which stays as it is.
        cluster: Of the same kind of compiler.
        options: As of ``search_module``.

    Raises:
        DoesNotFitError: No plan fits the memory.
    """
    mesh = cluster.level_mesh()
    mesh = mesh if mesh.axes else Mesh((Axis("data", 1),))
    levels = mesh.without_unit_axes()
    changed = imported.changed(levels, imported.pins)
    limit = memory_limit_of(cluster, options.memory_limit)
    with no_collection():
        found = _search(changed, cluster, options, limit, True)
        plan_mesh, axes = name_axes(changed, found.plan)
        summary = summarize(Costed(changed, found.plan, plan_mesh, cluster), axes)
    summary = _as_asked(summary, options, limit)
    return PlannedProgram(module, changed, found.plan, plan_mesh, cluster, options, summary)


def searched_seconds(
    imported: ImportedProgram,
    cluster: Cluster,
    options: RecursiveProgramming,
    stages: int = 1,
    useful: float = math.inf,
) -> tuple[float, float | None]:
    """Seconds of a step as the search weighs it, and the price of memory that it took; None: it is
    slower than is useful, and takes these seconds at least.

    Args:
        imported: A program without pins, manual computations or values on the host, as it was read
            for this cluster or another one.
        cluster: Of the same kind of compiler.
        options: As of ``search_module``.
        stages: As of ``ReadProgram.searched``.
        useful: Slower steps are of no use: that they are slower may be all that is told.

    Raises:
        DoesNotFitError: No plan fits the memory.
    """
    changed = imported.changed(cluster.level_mesh().without_unit_axes(), ())
    limit = memory_limit_of(cluster, options.memory_limit)
    with no_collection():
        most, merges = _MOST_GAIN * useful, not options.mesh_shape
        search = partial(_search, stages=stages, give_up_seconds=most)
        try:
            plan = search(changed, cluster, options, limit, merges).plan
        except _core.GivenUp as error:
            return error.args[1] / _MOST_GAIN, None
    is_weighed = options.cost_model == "seconds"
    seconds = min(plan.step_seconds, plan.objective) if is_weighed else plan.step_seconds
    return seconds, plan.mem_coeff


def replan_module(
    planned: PlannedProgram, pins: Sequence[Pinned], written: _core.CorePlan | None = None
) -> PlannedProgram:
    """Plan the same module again, on the same mesh, with more pins; the module is rewritten.

    Starts from the plan it has and decides every axis again, which takes a small part of a first
    plan's time.

    Args:
        planned: What was planned first.
        pins: Besides those it had.
        written: The plan that stands on the module; None: the one of ``planned``.

    Raises:
        PlanError: The plan is one by the symbolic cost.
        DoesNotFitError: No plan with these pins fits the memory.
        StrategyError: Pins that no plan keeps.
    """
    clock = PhaseClock()
    with planned.module.context, mlir.Location.unknown(), no_collection():
        with clock.phase("search"):
            changed = replanned(planned, pins, planned.options.most_seconds)
        clock.split("search", changed.plan.phases)
        with clock.phase("write"):
            write_plan(
                changed.module,
                changed.imported,
                changed.plan,
                changed.mesh,
                written or planned.plan,
            )
        return _timed(changed, clock)


def replanned(
    planned: PlannedProgram, pins: Sequence[Pinned], time_limit: float = math.inf
) -> PlannedProgram:
    """As ``replan_module``, and the module stays as it is.

    Args:
        planned: As there.
        pins: Likewise.
        time_limit: Seconds of the search.
    """
    if planned.options.cost_model != "seconds":
        raise PlanError(
            "a plan by the symbolic cost cannot be changed by pins. Plan again with "
            "cost_model='seconds'."
        )
    options, cluster = planned.options, planned.cluster
    mesh = planned.mesh.without_unit_axes()
    limit = memory_limit_of(cluster, options.memory_limit)
    imported = planned.imported.changed(mesh, [*planned.imported.pins, *pins])
    with explained(imported, limit, planned.stages):
        plan = _core.replan(
            imported.program,
            cluster.to_core(mesh, options.overlap),
            planned.plan,
            mem_coeff=None if options.mem_coeff == "auto" else options.mem_coeff,
            memory_limit=limit / planned.stages,
            sweeps=options.sweeps,
            time_limit=time_limit,
            seed=options.seed,
            stages=planned.stages,
        )
    made_of = {axis.name: axis.physical for axis in planned.summary.axes}
    axes = describe_axes(imported, plan, made_of)
    summary = summarize(Costed(imported, plan, planned.mesh, cluster), axes)
    summary = _as_asked(summary, options, limit)
    return replace(planned, imported=imported, plan=plan, summary=summary)


def _as_asked(summary: PlanSummary, options: RecursiveProgramming, limit: float) -> PlanSummary:
    """With what was asked for."""
    return replace(
        summary, memory_limit=limit, overlap=options.overlap, cost_model=options.cost_model
    )


def _timed(planned: PlannedProgram, clock: PhaseClock) -> PlannedProgram:
    summary = replace(planned.summary, planning_seconds=clock.seconds)
    planned.module.operation.attributes[PLAN] = mlir.StringAttr.get(summary.to_json())
    return replace(planned, summary=summary)


def estimate_planned(
    module: mlir.Module,
    cluster: Cluster,
    options: RecursiveProgramming,
    planning_seconds: Mapping[str, float],
) -> PlanSummary:
    """The summary of a plan that another pass made; it goes to the module, too.

    Raises:
        ClusterError: The mesh does not fit the cluster.
    """
    start = time.perf_counter()
    costed = cost_of_module(module, cluster, overlap=options.overlap, trip_count=options.trip_count)
    summary = costed.summary
    seconds = {**planning_seconds, "estimate": time.perf_counter() - start}
    summary = replace(
        summary, overlap=options.overlap, cost_model="bytes", planning_seconds=seconds
    )
    with module.context:
        module.operation.attributes[PLAN] = mlir.StringAttr.get(summary.to_json())
    return summary


def _read_strategies(
    module: mlir.Module, cluster: Cluster, options: RecursiveProgramming
) -> ReadModule:
    """Write pins and mesh; the search may make up its own mesh where none is given."""
    if options.mesh:
        set_mesh(module, options.mesh)
    levels = cluster.level_mesh()
    if options.mesh_shape:
        levels = mesh_of_shape(levels, options.mesh_shape, options.name)
    default = levels if levels.axes else Mesh((Axis("data", 1),))
    return import_strategies(module, default, cluster.platform)


_MOST_GAIN = 1.05
"""A first plan of a search over its last one, at most, where memory has no price."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What the search found."""

    plan: _core.CorePlan
    phases: Sequence[tuple[str, float]]
    symbolic_costs: SymbolicCosts | None = None


def _search(
    imported: ImportedProgram,
    cluster: Cluster,
    options: RecursiveProgramming,
    limit: float,
    may_merge: bool,
    *,
    all_prices: bool = False,
    most_seconds: float = math.inf,
    stages: int = 1,
    give_up_seconds: float = math.inf,
) -> _Found:
    core_cluster = cluster.to_core(imported.mesh, options.overlap)
    with explained(imported, limit, stages):
        if options.cost_model == "symbolic":
            return _search_symbolic(imported, core_cluster, options)
        plan = _core.recursive_programming(
            imported.program,
            core_cluster,
            mem_coeff=None if options.mem_coeff == "auto" else options.mem_coeff,
            memory_limit=limit / stages,
            sweeps=options.sweeps,
            joint=options.joint,
            fold=options.fold,
            # Numbers of blocks may not be products of merged axes.
            merge_axes=may_merge and not _counts_blocks(imported),
            all_prices=all_prices,
            most_seconds=most_seconds,
            time_limit=options.most_seconds,
            seed=options.seed,
            stages=stages,
            give_up_seconds=give_up_seconds,
            show=shown_search(),
        )
        return _Found(plan, plan.phases)


def _counts_blocks(imported: ImportedProgram) -> bool:
    """Does a pin say how many blocks a dim has, but not along which axes?"""
    return any(dim.num_shards is not None for pin in imported.pins for dim in pin.pin.dims)


def _search_symbolic(
    imported: ImportedProgram, cluster: _core.Cluster, options: RecursiveProgramming
) -> _Found:
    """The plan of least symbolic cost, with its seconds."""
    mem_coeff = DEFAULT_MEM_COEFF if options.mem_coeff == "auto" else options.mem_coeff
    start = time.perf_counter()
    chosen, costs = search_symbolic(imported, mem_coeff, sweeps=options.sweeps, seed=options.seed)
    middle = time.perf_counter()
    plan = _core.estimate(
        imported.program,
        cluster,
        shardings=chosen.shardings,
        value_sharding=chosen.value_sharding,
        strategies=chosen.strategies,
        op_strategy=chosen.op_strategy,
    )
    phases = [("symbolic", middle - start), ("estimate", time.perf_counter() - middle)]
    return _Found(plan, phases, costs)


def _is_price(value: Coefficient) -> bool:
    if isinstance(value, int | float):
        return value >= 0 and math.isfinite(value)
    return value == "auto"
