"""A plan that stands on a module, by the numbers of the core: to find out what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from autoshard import _core
from autoshard.cluster import Cluster
from autoshard.errors import PassOptionError, PlanError
from autoshard.importer.core_rules import RuleTable
from autoshard.importer.imported_program import NO_VALUE, ImportedProgram
from autoshard.importer.program import import_program
from autoshard.ir import mlir, place
from autoshard.ir.attributes import (
    MHLO_SHARDING,
    PLAN,
    RESHARDED_BYTES,
    ROUNDED,
    STRATEGY,
    attribute_of,
)
from autoshard.planned.axis_names import describe_axes
from autoshard.planned.host_traffic import HostTraffic, host_traffic
from autoshard.planned.summarize import main_values, shardings_of, summarize
from autoshard.planned.summary import PlanSummary
from autoshard.planned.write import mesh_of, populate_rules, remove_rules
from autoshard.sharding import Mesh, OpStrategy, Sharding, from_hlo, tuple_from_hlo
from autoshard.sharding.text import parsed_strategy

Dims = tuple[tuple[int, ...], ...]
"""For each dim the numbers of the axes that cut it."""


@dataclass(frozen=True)
class Costed:
    """A planned module, imported, and what its plan costs."""

    imported: ImportedProgram
    plan: _core.CorePlan
    mesh: Mesh
    cluster: Cluster

    @cached_property
    def host_traffic(self) -> HostTraffic:
        """What the plan sends to the host, and keeps there."""
        return host_traffic(self.imported, self.plan, self.mesh, self.cluster)

    @property
    def peak_bytes(self) -> float:
        """On one device, without what values in the memory of the host count in a search."""
        return self.plan.peak_bytes - self.host_traffic.counted_bytes

    @property
    def step_seconds(self) -> float:
        """With the seconds in which devices wait for their hosts."""
        return self.plan.step_seconds + self.host_traffic.exposed_seconds

    @cached_property
    def summary(self) -> PlanSummary:
        """What the plan costs, in the words of the user's program; nothing of its search."""
        lies_on = self.cluster.covered_in_order(self.mesh)
        return summarize(self, describe_axes(self.imported, self.plan, lies_on))

    @cached_property
    def shardings(self) -> list[Sharding]:
        """The plan's table."""
        return shardings_of(self.plan, self.mesh)

    @cached_property
    def sharding_texts(self) -> list[str]:
        """Each sharding of the plan's table as text."""
        return [str(sharding) for sharding in self.shardings]


def has_plan(module: mlir.Module) -> bool:
    """Whether a plan stands on a module that is not exported."""
    attributes = module.operation.attributes
    return PLAN in attributes or RESHARDED_BYTES in attributes


def summary_on(module: mlir.Module) -> PlanSummary | None:
    """What the pass that planned the module says of its plan; None where it knew no cluster."""
    attributes = module.operation.attributes
    if PLAN not in attributes:
        return None
    return PlanSummary.from_json(mlir.StringAttr(attributes[PLAN]).value)


def cluster_for(module: mlir.Module, given: str, pass_name: str, compiler: str = "") -> Cluster:
    """The cluster that a pass is given, or else the one that the module is planned for.

    Args:
        module: Planned.
        given: The option of the pass; empty where it is left out.
        pass_name: For errors.
        compiler: Another one than the cluster's, as ``Cluster.with_compiler`` takes it.

    Raises:
        PassOptionError: Neither is known.
        ClusterError: Nobody knows the given one, or the compiler.
    """
    if given:
        return Cluster.of(given, compiler)
    summary = summary_on(module)
    if summary is None:
        raise PassOptionError(
            f"{pass_name}: no cluster is given, and the plan was made without one. Give "
            "cluster=v5e:4x4, or the path of a TOML file."
        )
    return Cluster.of(summary.read_cluster(), compiler)


def cost_of_module(
    module: mlir.Module,
    cluster: Cluster,
    *,
    overlap: float = 0.0,
    trip_count: int = 100,
    rules: RuleTable | None = None,
) -> Costed:
    """What the plan on a module costs.

    Args:
        module: Planned, not exported; it stays as it is.
        cluster: What it is to run on.
        overlap: Share of communication that hides behind compute.
        trip_count: Assumed trips of loops whose count cannot be read from the program.
        rules: As of ``import_program``.

    Raises:
        PlanError: There is no plan, a part of it is missing, or it does not hold.
        ClusterError: The mesh does not fit the cluster.
    """
    from autoshard.planned.manual import with_bodies  # it costs modules, too

    with module.context, mlir.Location.unknown():
        mesh = mesh_of(module)
        populate_rules(module)
        try:
            imported = import_program(
                module,
                mesh,
                unknown_trip_count=trip_count,
                keep_strategies=False,
                rules=rules,
                compiler=cluster.compiler,
            )
            imported = with_bodies(imported, cluster)
            plan = _cost_of(GivenPlan(imported, is_as_read=True), cluster, overlap)
        finally:
            remove_rules(module)
    return Costed(imported, plan, imported.mesh, cluster)


def cost_of(imported: ImportedProgram, cluster: Cluster, overlap: float) -> _core.CorePlan:
    """What the plan costs that stands on the ops of an imported module."""
    return _cost_of(GivenPlan(imported), cluster, overlap)


def _cost_of(given: GivenPlan, cluster: Cluster, overlap: float) -> _core.CorePlan:
    values = given.values()
    strategies = given.op_strategies(values)
    return given.checked(given.imported.program, cluster, overlap, values, strategies)


def estimated(costed: Costed, *, overlap: float = 0.0) -> Costed:
    """The plan of a search by the estimate of its module, as ``cost_of_module`` finds it.

    The search may know of more than the module says, as within a limit of memory.
    """
    plan = costed.plan
    found = _core.estimate(
        costed.imported.program,
        costed.cluster.to_core(costed.mesh, overlap),
        shardings=plan.shardings,
        value_sharding=plan.value_sharding,
        strategies=plan.strategies,
        op_strategy=plan.op_strategy,
        known=plan,
    )
    return replace(costed, plan=found)


class GivenPlan:
    """The tables of a plan, each row once."""

    def __init__(self, imported: ImportedProgram, *, is_as_read: bool = False) -> None:
        """``is_as_read``: nothing was written to the module since: ops of a class say the same."""
        self.imported, self.is_as_read = imported, is_as_read
        self.mesh = imported.mesh
        self.shardings: dict[Dims, int] = {}
        self.strategies: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        self.known_strategies: dict[tuple[mlir.Attribute, int], int] = {}

    def value_dims(self) -> list[Dims]:
        """How the plan cuts each value.

        Raises:
            PlanError: There is no plan, or a part of it is missing.
        """
        values = self.values()
        rows = list(self.shardings)
        return [rows[row] for row in values]

    def row(self, dims: Dims) -> int:
        """Row of a sharding by its axes."""
        return self.shardings.setdefault(dims, len(self.shardings))

    def strategy_row(self, operands: tuple[int, ...], results: tuple[int, ...]) -> int:
        """Row of a strategy by the rows of its shardings."""
        return self.strategies.setdefault((operands, results), len(self.strategies))

    def index(self, sharding: Sharding) -> int:
        """Row of a sharding."""
        dims = tuple(
            tuple(self.mesh.axis_index(axis.name) for axis in axes) for axes in sharding.dims
        )
        return self.row(dims)

    def values(self) -> list[int]:
        """Row of the sharding of each value."""
        found: dict[int, int] = {}
        known: dict[object, int] = {}
        imported = self.imported
        for (op, values), op_class in zip(
            imported.result_values, imported.result_classes, strict=True
        ):
            if len(values) == 1:
                # Nearly all ops, and nearly all of them say what another one said.
                value = values[0]
                if value == NO_VALUE or value in found:
                    continue
                key = op_class if self.is_as_read else _said_of_result(op)
                if key not in known:
                    known[key] = self.index(self.of_results(op)[0])
                found[value] = known[key]
                continue
            if any(value != NO_VALUE and value not in found for value in values):
                shardings = self.of_results(op)
                for value, sharding in zip(values, shardings, strict=True):
                    if value != NO_VALUE:
                        found.setdefault(value, self.index(sharding))
        main = main_values(self.imported)
        for name, values in (("arg_attrs", main.arguments), ("res_attrs", main.results)):
            for value, sharding in zip(values, self.of_boundary(main.op, name), strict=True):
                if value != NO_VALUE and sharding is not None:
                    found.setdefault(value, self.index(sharding))
        for pin in self.imported.pins:
            dims = tuple(dim.axes for dim in pin.pin.dims)
            if pin.value not in found:
                found[pin.value] = self.shardings.setdefault(dims, len(self.shardings))
        for number, one in self.imported.rounded.items():
            said = self._rounded(number)
            if said is not None:
                found[one.result] = self.index(said.results[1])
            elif one.source in found:  # it is cast as it lies
                found[one.result] = found[one.source]
        count = self.imported.program.num_values
        if len(found) < count:
            raise PlanError(
                f"{count - len(found)} of {count} values have no {MHLO_SHARDING}. "
                "Plan the module again."
            )
        return [found[value] for value in range(count)]

    def op_strategies(self, value_sharding: Sequence[int]) -> list[int]:
        """Row of the strategy of each op.

        Args:
            value_sharding: Row of the sharding of each value.
        """
        ops, classes = self.imported.core_ops, self.imported.op_classes.tolist()
        known: dict[int, int] = {}
        found: list[int] = []
        for number, (op, op_class) in enumerate(zip(ops, classes, strict=True)):
            if number in self.imported.rounded:
                found.append(self._strategy_of_cast(number, value_sharding))
            elif not self.is_as_read:
                found.append(self.strategy(op))
            else:
                if op_class not in known:
                    known[op_class] = self.strategy(op)
                found.append(known[op_class])
        return found

    def _strategy_of_cast(self, number: int, value_sharding: Sequence[int]) -> int:
        said, one = self._rounded(number), self.imported.rounded[number]
        if said is None:
            rows = value_sharding[one.source], value_sharding[one.result]
        else:
            rows = self.index(said.operands[0]), self.index(said.results[0])
        return self.strategy_row(rows[:1], rows[1:])

    def _rounded(self, number: int) -> OpStrategy | None:
        """What the module says of a cast that it does not have; None where it says nothing."""
        attribute = attribute_of(self.imported.core_ops[number], ROUNDED)
        if attribute is None:
            return None
        entry = mlir.ArrayAttr(attribute)[self.imported.rounded[number].position]
        text = mlir.StringAttr(entry).value
        return parsed_strategy(text, self.mesh) if text else None

    def checked(
        self,
        program: _core.Program,
        cluster: Cluster,
        overlap: float,
        value_sharding: Sequence[int],
        op_strategy: Sequence[int],
    ) -> _core.CorePlan:
        """The plan of these rows, and what it costs.

        Args:
            program: Of the imported module, with the pins that the plan must keep.
            cluster: What it is to run on.
            overlap: Share of communication that hides behind compute.
            value_sharding: Row of the sharding of each value.
            op_strategy: Row of the strategy of each op.

        Raises:
            PlanError: It does not hold, with the place of a pin of the user that it breaks.
            ClusterError: The mesh does not fit the cluster.
        """
        core_cluster = cluster.to_core(self.mesh, overlap)
        try:
            return _core.estimate(
                program,
                core_cluster,
                shardings=list(self.shardings),
                value_sharding=value_sharding,
                strategies=list(self.strategies),
                op_strategy=op_strategy,
            )
        except RuntimeError as error:
            broken = self._broken_pin(value_sharding)
            if broken is not None:
                raise broken from error
            raise self._not_held(str(error)) from error

    def _not_held(self, said: str) -> PlanError:
        """With the name and the place of the op, of which the core says the number."""
        what, _, number = said.rpartition(" at op ")
        op = self.imported.core_ops[int(number)] if number.isdigit() else None
        why = said if op is None else f"{op.name}: {what}"
        at = None if op is None else place(op.location)
        return PlanError(f"the plan on the module does not hold: {why}. Plan the module again.", at)

    def _broken_pin(self, value_sharding: Sequence[int]) -> PlanError | None:
        """The error for the first pin of the user that the plan breaks, if there is one."""
        rows, sizes = list(self.shardings), self.mesh.axis_sizes
        for pinned in self.imported.pins:
            dims = rows[value_sharding[pinned.value]]
            if self.imported.value_is_free[pinned.value] or pinned.pin.allows(dims, sizes):
                continue
            names = (", ".join(self.mesh.axis_names[axis] for axis in axes) for axes in dims)
            has = ", ".join(f"{{{axes}}}" for axes in names)
            return PlanError(
                f"the plan on the module does not hold: a value is pinned to {pinned.text}, but is"
                f" planned as [{has}]. Plan the module again, or change the pin.",
                pinned.place,
            )
        return None

    def of_results(self, op: mlir.Operation) -> tuple[Sharding, ...]:
        """Shardings of the results of an op, as the module says."""
        attribute = attribute_of(op, MHLO_SHARDING)
        if attribute is None:
            raise PlanError(
                f"{op.name} has no {MHLO_SHARDING}: nothing has been planned, or the plan was "
                "exported. Plan the module, and give it as planning left it.",
                place(op.location),
            )
        ranks = tuple(_rank(result.type) for result in op.results)
        return self.parsed(mlir.StringAttr(attribute).value, ranks)

    def of_boundary(self, main: mlir.Operation, name: str) -> list[Sharding | None]:
        """Shardings of the arguments or results of ``main``; None where the module does not say."""
        function = mlir.FunctionType(mlir.TypeAttr(main.attributes["function_type"]).value)
        types = function.inputs if name == "arg_attrs" else function.results
        attributes = attribute_of(main, name)
        if attributes is None:
            return [None] * len(types)
        found: list[Sharding | None] = []
        for entry, type_ in zip(mlir.ArrayAttr(attributes), types, strict=True):
            entries = mlir.DictAttr(entry)
            if MHLO_SHARDING not in entries:
                found.append(None)
                continue
            text = mlir.StringAttr(entries[MHLO_SHARDING]).value
            found.append(self.parsed(text, (_rank(type_),))[0])
        return found

    def parsed(self, text: str, ranks: tuple[int, ...]) -> tuple[Sharding, ...]:
        """The shardings that a text gives values of these ranks."""
        return _parsed(text, self.mesh, ranks)

    def strategy(self, op: mlir.Operation) -> int:
        """Row of an op's strategy."""
        attribute = attribute_of(op, STRATEGY)
        if attribute is None:
            raise PlanError(
                f"{op.name} has no {STRATEGY}. Plan the module again.", place(op.location)
            )
        # A text has as many dims for each value as the value, so that it says the ranks, too.
        key = (attribute, len(op.operands))
        if key not in self.known_strategies:
            said = parsed_strategy(mlir.StringAttr(attribute).value, self.mesh)
            self.known_strategies[key] = self.strategy_row(
                self._side(said.operands, op.operands), self._side(said.results, op.results)
            )
        return self.known_strategies[key]

    def _side(self, shardings: Sequence[Sharding], values: Sequence[mlir.Value]) -> tuple[int, ...]:
        return tuple(
            self.index(sharding) if _rank(value.type) else NO_VALUE
            for sharding, value in zip(shardings, values, strict=True)
        )


def _said_of_result(op: mlir.Operation) -> tuple[mlir.Attribute | None, mlir.Type]:
    return attribute_of(op, MHLO_SHARDING), op.results[0].type


def _rank(type_: mlir.Type) -> int:
    return type_.rank if isinstance(type_, mlir.RankedTensorType) else 0


# A module that is rewritten step by step says the same again and again.


@lru_cache(maxsize=1 << 14)
def _parsed(text: str, mesh: Mesh, ranks: tuple[int, ...]) -> tuple[Sharding, ...]:
    if len(ranks) == 1:
        return (from_hlo(text, mesh, ranks[0]),)
    return tuple_from_hlo(text, mesh, ranks)
