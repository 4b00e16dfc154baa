"""A plan that is asked about: its program as the core has it, to be planned again.

Every question is one solve of the whole program: with a value pinned, an operand read as it is, a
factor left whole, another limit, another machine. The answer has the numbers of the plan itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from autoshard import _core
from autoshard.cluster import Cluster
from autoshard.errors import ParseError, PlanError, StrategyError
from autoshard.explain.record import Record
from autoshard.explain.record_build import record_of, record_of_module
from autoshard.frontend.plan import Plan
from autoshard.importer.imported_program import ImportedProgram
from autoshard.importer.pins import Pin, Pinned
from autoshard.importer.program import import_program
from autoshard.ir import mlir, new_context, parse_bytes, parse_file
from autoshard.ir.attributes import MARK, PLAN, STRATEGY, custom_call_target
from autoshard.ir.module import operations_of
from autoshard.passes.memory_limit import memory_limit_of
from autoshard.planned.does_not_fit import does_not_fit
from autoshard.planned.given_plan import Costed, cost_of, cost_of_module, summary_on
from autoshard.planned.summarize import peak_values
from autoshard.planned.summary import PeakValue, PlanSummary
from autoshard.planned.write import explain, mesh_of, populate_rules, remove_rules, write_plan
from autoshard.search.automatic import Planned
from autoshard.sharding import Mesh

Dims = tuple[tuple[int, ...], ...]
"""For each dim of a value the numbers of the axes that cut it."""


@dataclass(frozen=True)
class Change:
    """In what a solve differs from the one that made the plan."""

    pins: tuple[Pinned, ...] = ()
    """Besides those of the program."""
    kept_operands: tuple[tuple[int, int], ...] = ()
    """(op, operand) that are read as they are made."""
    whole_factors: tuple[tuple[int, int], ...] = ()
    """(op, factor) that no axis cuts."""
    memory_limit: float | None = None
    """Bytes of a device; None: what the plan had to keep within."""
    without_pins: bool = False
    """What the user pinned is free."""
    mesh: str = ""
    """Another mesh than the plan's, whose axes pins name then; only for the whole search."""


@dataclass(frozen=True)
class Outcome:
    """What a solve came to: a plan, or why there is none."""

    imported: ImportedProgram
    plan: _core.CorePlan | None
    peak_bytes: float = 0.0
    """What the plan that needs least needs, where none fits."""
    tensors: tuple[PeakValue, ...] = ()
    """Its largest ones at that moment."""
    reason: str = ""
    """Why there is no plan."""

    @property
    def fits(self) -> bool:
        """Is there a plan?"""
        return self.plan is not None

    @property
    def is_impossible(self) -> bool:
        """Is there none, whatever memory there is?"""
        return self.plan is None and not self.peak_bytes

    def dims_of(self, value: int) -> Dims:
        """How the plan cuts a value."""
        assert self.plan is not None
        return self.dims[value]

    @cached_property
    def dims(self) -> list[Dims]:
        """How it cuts each value."""
        assert self.plan is not None
        return dims_of_all(self.plan)


@dataclass(frozen=True)
class Subject:
    """A plan and all that it takes to ask about it."""

    name: str
    module: mlir.Module = field(repr=False)
    """As planning left it; the program's ops live in it."""
    costed: Costed
    summary: PlanSummary
    result_names: tuple[str, ...] = ()
    """What the user calls the results of ``main``."""
    known: dict[Change, Outcome] = field(default_factory=dict[Change, Outcome], repr=False)
    """Solves so far."""

    @property
    def imported(self) -> ImportedProgram:
        """The program."""
        return self.costed.imported

    @property
    def plan(self) -> _core.CorePlan:
        """The plan as it stands, with its costs."""
        return self.costed.plan

    @property
    def mesh(self) -> Mesh:
        """The plan's mesh, without axes of size 1."""
        return self.costed.imported.mesh

    @property
    def cluster(self) -> Cluster:
        """What it is planned for."""
        return self.costed.cluster

    # What a module says does not tell how copies are held, which memory decides where it has a
    # price. The summary does, in its sums.

    @property
    def step_seconds(self) -> float:
        """Seconds of a step, without what waits for the host."""
        return self.summary.step_seconds - self.summary.host_exposed_seconds

    @property
    def peak_bytes(self) -> float:
        """The largest sum of what lives at once, on one device; what is on the host included."""
        on_host = bool(self.imported.host.values)
        return self.plan.peak_bytes if on_host else self.summary.peak_bytes_per_device

    @cached_property
    def memory_limit(self) -> float:
        """Bytes of a device that a plan may use."""
        limit = self.summary.memory_limit
        return memory_limit_of(self.cluster, "") if limit is None else limit

    @cached_property
    def dims(self) -> list[Dims]:
        """How the plan cuts each value."""
        return dims_of_all(self.plan)

    def solved(self, change: Change) -> Outcome:
        """The best plan near this one with a change: every axis is decided again from it.

        Where that leads nowhere, the whole search on this mesh.
        """
        if change not in self.known:
            self.known[change] = self._near(change) or self.from_nothing(change)
        return self.known[change]

    def searched(self, change: Change) -> Outcome:
        """The better one of that and of the whole search on this mesh, from nothing."""
        far = self.from_nothing(change)
        if change.mesh or far.is_impossible:
            return far
        near = self._near(change)
        if near is None or near.plan is None:
            return far
        if far.plan is None or near.plan.step_seconds <= far.plan.step_seconds:
            return near
        return far

    def _near(self, change: Change) -> Outcome | None:
        """What is found from this plan on; None where that leads nowhere or does not fit."""
        limit = self._limit(change)
        imported = self._changed(change)
        plan = _core.replan_near(
            imported.program,
            self._core_cluster,
            self.plan,
            mem_coeff=None,
            memory_limit=min(limit, _NO_LIMIT),
            price=0.0 if math.isinf(limit) else self.summary.mem_coeff,
        )
        return None if plan is None else Outcome(imported, plan)

    def from_nothing(self, change: Change) -> Outcome:
        """The whole search on this mesh, or on another one, which knows nothing of the plan."""
        limit = self._limit(change)
        try:
            imported = self._changed(change)
        except StrategyError as error:
            return Outcome(self.imported, None, reason=error.message)
        cluster = self.cluster.to_core(imported.mesh, self.summary.overlap)
        return _outcome(
            imported,
            limit,
            lambda: _core.recursive_programming(
                imported.program,
                cluster,
                mem_coeff=None,
                memory_limit=min(limit, _NO_LIMIT),
                merge_axes=False,
            ),
        )

    def priced(self, price: float, start: Outcome) -> Outcome:
        """The fastest plan near ``start`` with memory at a price and without a limit.

        Args:
            price: 1 is the time to read a byte of the peak once.
            start: Another plan of the same program.
        """
        assert start.plan is not None
        plan = _core.replan(
            self.imported.program,
            self._core_cluster,
            start.plan,
            mem_coeff=None,
            memory_limit=_NO_LIMIT,
            price=price,
        )
        return Outcome(self.imported, plan)

    def taken(self, plan: Plan, outcome: Outcome) -> Plan:
        """The plan of a solve in place of the one that was asked about.

        Raises:
            PlanError: That was loaded, or made by a ``Planner``.
        """
        from autoshard.frontend.planning import read_planned

        origin = plan.origin
        if origin is None or outcome.plan is None:
            raise PlanError(
                f"plan of {self.name}: another plan is taken by what autoshard.plan returned, not"
                " by a plan that was loaded or made by a Planner."
            )
        module = parse_bytes(plan.bytecode, new_context(), self.name)
        costed = subject_of_module(self.name, module, self.summary).costed
        summary = self.summarized(outcome)
        with module.context:
            write_plan(module, costed.imported, outcome.plan, self.mesh, costed.plan)
            module.operation.attributes[PLAN] = mlir.StringAttr.get(summary.to_json())
        taken = read_planned(origin.source, Planned(module, summary), origin.request)
        return replace(taken, origin=origin)

    def summarized(self, outcome: Outcome) -> PlanSummary:
        """What the plan of a solve costs, in the user's words."""
        assert outcome.plan is not None
        imported, plan = outcome.imported, outcome.plan
        found = Costed(imported, plan, imported.mesh, self.cluster).summary
        return replace(found, memory_limit=self.memory_limit, overlap=self.summary.overlap)

    @cached_property
    def _core_cluster(self) -> _core.Cluster:
        return self.cluster.to_core(self.mesh, self.summary.overlap)

    def _limit(self, change: Change) -> float:
        return self.memory_limit if change.memory_limit is None else change.memory_limit

    def _changed(self, change: Change) -> ImportedProgram:
        held = [pin for pin in self.imported.pins if not (change.without_pins and pin.is_users)]
        mesh = self.mesh
        if change.mesh:
            mesh = Mesh.parse(change.mesh).without_unit_axes()
            held = [_on_mesh(pinned, self.mesh, mesh) for pinned in held]
        return self.imported.changed(
            mesh,
            [*held, *change.pins],
            kept_operands=change.kept_operands,
            whole_factors=change.whole_factors,
        )


_NO_LIMIT = 1e30
"""Bytes that no plan needs."""


def subject_of(plan: Plan) -> Subject:
    """A plan to ask about, made now or read from a file.

    Raises:
        PlanError: It was not searched by time, so that there is nothing to compare with.
    """
    summary = plan.summary
    if summary is None or plan.mode != "auto" or summary.cost_model == "symbolic":
        raise PlanError(
            f"plan of {plan.name}: questions are answered by planning again by time, but it was"
            f" planned in mode {plan.mode!r}"
            f"{'' if summary is None else f' by {summary.cost_model}'}. Plan it with a cluster and"
            ' mode="auto".'
        )
    names = tuple(value.name for value in plan.results)
    known = None if plan.searched is None else plan.searched.known
    if known is not None:
        return Subject(plan.name, *known, summary, names)
    return subject_of_module(plan.name, GivenModule.of(plan).module, summary, names)


def record_of_plan(plan: Plan) -> Record:
    """All that is told of a plan, from what its search read where that is still there."""
    known = None if plan.searched is None else plan.searched.known
    if known is not None and plan.summary is not None:
        return record_of(*known, plan.summary, plan.name, plan.mode)
    return record_of_module(GivenModule.of(plan).module, plan.name, plan.mode)


def subject_of_file(path: Path) -> Subject:
    """What a file has: ``plan.save`` wrote it, or it is a planned module.

    Raises:
        ParseError: It is neither.
        PlanError: There is no plan on the module, or it was made without a cluster.
    """
    given = GivenModule.read(path)
    if given.plan is not None:
        return subject_of(given.plan)
    if given.summary is None:
        raise PlanError(
            "the module carries no plan with seconds. Plan it with"
            " --autoshard-recursive-programming=cluster=v5e:4x4 or the like.",
            str(path),
        )
    return subject_of_module(given.name, given.module, given.summary)


@dataclass(frozen=True)
class GivenModule:
    """A planned module, of a plan or of a file."""

    name: str
    module: mlir.Module
    summary: PlanSummary | None
    """None: it was planned without a cluster."""
    plan: Plan | None

    @classmethod
    def of(cls, plan: Plan) -> GivenModule:
        """The module of a plan."""
        module = parse_bytes(plan.bytecode, new_context(), plan.name)
        return cls(plan.name, module, plan.summary, plan)

    @classmethod
    def read(cls, path: Path) -> GivenModule:
        """What ``plan.save`` wrote, or a planned module.

        Raises:
            ParseError: It is neither.
        """
        try:
            is_plan = path.read_bytes()[:1] == b"{"
        except OSError as error:
            raise ParseError(f"cannot be read: {error.strerror}.", str(path)) from error
        if is_plan:
            return cls.of(Plan.load(path))
        module = parse_file(str(path), new_context())
        return cls(path.name, module, summary_on(module), None)


def subject_of_module(
    name: str, module: mlir.Module, summary: PlanSummary, result_names: Sequence[str] = ()
) -> Subject:
    """A planned module to ask about.

    Args:
        name: Of the program.
        module: As planning left it.
        summary: What it says of its plan.
        result_names: Of the results of ``main``.

    Raises:
        PlanError: There is no plan on it, or it does not hold.
    """
    costed = _costed_with_marks(module, summary)
    if costed is None:
        costed = cost_of_module(module, summary.read_cluster(), overlap=summary.overlap)
    return Subject(name, module, costed, summary, tuple(result_names))


def _costed_with_marks(module: mlir.Module, summary: PlanSummary) -> Costed | None:
    """The plan with what marks ask of the ops that read them; None if there are no marks.

    Also None where the plan does not keep to that: recomputation has put ops between.
    """
    operations = operations_of(module.operation)
    if not any(custom_call_target(op) == MARK for op in operations):
        return None
    cluster = summary.read_cluster()
    with module.context, mlir.Location.unknown():
        # To the importer, what has a strategy has been pinned.
        said = [(op, op.attributes[STRATEGY]) for op in operations if STRATEGY in op.attributes]
        for op, _ in said:
            del op.attributes[STRATEGY]
        populate_rules(module)
        try:
            imported = import_program(
                module, mesh_of(module), unknown_trip_count=100, compiler=cluster.compiler
            )
        finally:
            remove_rules(module)
            for op, strategy in said:
                op.attributes[STRATEGY] = strategy
        try:
            plan = cost_of(imported, cluster, summary.overlap)
        except PlanError:
            return None
    return Costed(imported, plan, imported.mesh, cluster)


def dims_of_all(plan: _core.CorePlan) -> list[Dims]:
    """How a plan cuts each value."""
    rows = [tuple(map(tuple, dims)) for dims in plan.shardings]
    return [rows[row] for row in plan.value_sharding]


def sharding_text(dims: Dims, mesh: Mesh) -> str:
    """``[{data}, {}]``."""
    names = mesh.axis_names
    return f"[{', '.join('{' + ', '.join(names[a] for a in axes) + '}' for axes in dims)}]"


def _on_mesh(pinned: Pinned, before: Mesh, after: Mesh) -> Pinned:
    """A pin by the names of its axes.

    Raises:
        StrategyError: One of them is not there.
    """

    def numbers(axes: Sequence[int]) -> tuple[int, ...]:
        missing = [a for a in axes if before.axis_names[a] not in after.axis_names]
        if missing:
            raise StrategyError(
                f"the program pins a value to {pinned.text}, but mesh {after} has no axis"
                f' "{before.axis_names[missing[0]]}". Give it one.',
                pinned.place,
            )
        return tuple(after.axis_index(before.axis_names[axis]) for axis in axes)

    dims = tuple(replace(dim, axes=numbers(dim.axes)) for dim in pinned.pin.dims)
    return replace(pinned, pin=Pin(dims, numbers(pinned.pin.replicated)))


def _outcome(
    imported: ImportedProgram, limit: float, solve: Callable[[], _core.CorePlan]
) -> Outcome:
    try:
        return Outcome(imported, solve())
    except _core.DoesNotFit as error:
        _, peak, _, live = error.args
        refusal = does_not_fit(imported, peak, limit, live)
        tensors = peak_values(imported, live, {})
        return Outcome(imported, None, peak, tensors, refusal.message)
    except _core.Contradiction as error:
        return Outcome(imported, None, reason=str(explain(imported, error)))
