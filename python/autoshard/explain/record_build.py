"""The record of a planned module: every op, collective and value of it, equal layers folded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import isclose, prod

import numpy as np
from numpy.typing import NDArray

from autoshard import _core
from autoshard.errors import PlanError
from autoshard.explain.bound import bound_of, roofline_seconds
from autoshard.explain.folding import Fold, common_name, folded
from autoshard.explain.record import (
    MemoryPoint,
    Record,
    RecordedCollective,
    RecordedOp,
    RecordedValue,
    without_collectives,
)
from autoshard.explain.record_names import OpNames
from autoshard.explain.timeline_build import PlacedCollective, timeline_of
from autoshard.importer.imported_program import NO_VALUE, ImportedProgram
from autoshard.ir import element_bits, mlir, parse_bytes, place, print_module
from autoshard.ir.attributes import RESHARDED_BYTES, RESULT_INFO
from autoshard.ir.boundary import allows_all_to_all, main_function
from autoshard.ir.garbage import no_collection
from autoshard.ir.host_memory import on_host
from autoshard.planned.given_plan import Costed, cost_of_module, summary_on
from autoshard.planned.module import Placement, read_boundary
from autoshard.planned.summarize import (
    Moved,
    argument_name,
    moves,
    type_text,
    value_names,
)
from autoshard.planned.summary import PlanSummary, seconds_text
from autoshard.planned.write import mesh_of

_NO_CLUSTER = (
    "planned without a cluster, so nothing is known of seconds and memory: plan with "
    "autoshard-recursive-programming, or see autoshard-print-costs='cluster=v5e:4x4'"
)

_CLOSE = 0.01
"""Share by which prices may differ that are called the same."""

MOST_POINTS = 240
"""Stretches of the program that the memory of a step is told of."""


@no_collection()
def record_of_module(module: mlir.Module, name: str = "", mode: str | None = None) -> Record:
    """All that is told of the plan on a module.

    Args:
        module: Planned and not exported; it stays as it is.
        name: The function, or the file.
        mode: The mode that it was planned in, as far as it is known.

    Raises:
        PlanError: There is no plan, a part of it is missing, or it does not hold.
    """
    summary = summary_on(module)
    if summary is None:
        return _of_propagation(module, name, mode)
    costed = cost_of_module(module, summary.read_cluster(), overlap=summary.overlap)
    return record_of(module, costed, summary, name, mode)


@no_collection()
def record_of(
    module: mlir.Module, costed: Costed, summary: PlanSummary, name: str, mode: str | None
) -> Record:
    """All that is told of a plan whose program and costs are known.

    Args:
        module: As planning left it.
        costed: Its program, and what its plan costs.
        summary: What planning said of it.
        name: The function, or the file.
        mode: The mode that it was planned in.
    """
    imported = costed.imported
    names = OpNames(
        imported.core_ops,
        imported.op_classes,
        imported.op_locations,
        {number: one.type for number, one in imported.rounded.items()},
    )
    arguments, results = _boundary(module)
    ops = _Ops(costed, names)
    collectives = _placed_collectives(costed, names, ops.alike.group_of)
    timeline = timeline_of(
        costed,
        names,
        ops.alike.group_of,
        collectives,
        summary.step_seconds,
        _exposed(summary),
    )
    return Record(
        name=name,
        mode=mode,
        mesh=summary.mesh,
        summary=without_collectives(summary),
        resharded_bytes=costed.plan.resharded_bytes,
        missing=_priced_otherwise(costed, summary),
        arguments=arguments,
        results=results,
        frames=tuple(names.stacks.frames),
        ops=tuple(ops.rows()),
        collectives=tuple(_folded_collectives(one.row for one in collectives)),
        memory=tuple(_memory(costed, names)),
        timeline=timeline,
    )


def _exposed(summary: PlanSummary) -> float:
    """Share of the seconds of collectives that does not hide."""
    waited = summary.step_seconds - summary.compute_seconds - summary.host_exposed_seconds
    sent = summary.communication_seconds
    share = min(1.0, max(0.0, waited / sent)) if sent > 0 else 1.0
    return 1.0 if isclose(share, 1.0) else share


def _priced_otherwise(costed: Costed, summary: PlanSummary) -> str | None:
    """What to say where ops and collectives are not priced as the plan was; None if they are."""
    for what, priced, planned in (
        ("compute", costed.plan.compute_seconds, summary.compute_seconds),
        ("communication", costed.plan.communication_seconds, summary.communication_seconds),
    ):
        if abs(priced - planned) > _CLOSE * max(priced, planned):
            return (
                f"ops and collectives are priced otherwise than when it was planned:"
                f" {what} {seconds_text(priced)}, planned {seconds_text(planned)}. It was planned"
                " with another trip count or compiler, or by another release: plan again."
            )
    return None


def _of_propagation(module: mlir.Module, name: str, mode: str | None) -> Record:
    """Shardings, and the collectives that Shardy makes of them."""
    # Imported here: they load the exporter, which nothing else needs.
    from autoshard.passes.export_shardy import ExportShardy
    from autoshard.verify.shardy_collectives import shardy_collectives

    attributes = module.operation.attributes
    if RESHARDED_BYTES not in attributes:
        raise PlanError(
            "the module has no plan. Plan it: --autoshard-recursive-programming='cluster=v5e:4x4'.",
            place(module.operation.location),
        )
    exported = parse_bytes(print_module(module, "bytecode"), module.context)
    ExportShardy().run(exported)
    rows: list[RecordedCollective] = []
    for one in shardy_collectives(exported, has_all_to_all=allows_all_to_all(module)):
        location = None if one.place is None else one.place.rpartition(":")[0]
        rows.append(
            RecordedCollective(
                id=f"{one.kind.value} at {location}",
                kind=one.kind.value,
                axes=None if one.axes is None else tuple(str(axis) for axis in one.axes),
                bytes=one.moved_bytes,
                times=one.times,
                seconds=None,
                location=location,
                of="",
                value="",
                type="",
                phase="",
                frame=-1,
                scope="",
                count=1,
            )
        )
    arguments, results = _boundary(module)
    return Record(
        name=name,
        mode=mode,
        mesh=str(mesh_of(module)),
        summary=None,
        resharded_bytes=mlir.FloatAttr(attributes[RESHARDED_BYTES]).value,
        missing=_NO_CLUSTER,
        arguments=arguments,
        results=results,
        collectives=tuple(rows),
    )


# Arguments and results


def _boundary(
    module: mlir.Module,
) -> tuple[tuple[RecordedValue, ...], tuple[RecordedValue, ...]]:
    """The arguments and the results of ``main``."""
    main, boundary = main_function(module), read_boundary(module)
    function = mlir.FunctionType(mlir.TypeAttr(main.attributes["function_type"]).value)
    names = [
        argument_name(argument, number)
        for number, argument in enumerate(main.regions[0].blocks[0].arguments)
    ]
    hosted = on_host(main, "arg_attrs")
    arguments = _values(names, function.inputs, boundary.arguments, hosted)
    names, hosted = _result_names(main, len(function.results)), on_host(main, "res_attrs")
    return arguments, _values(names, function.results, boundary.results, hosted)


def _values(
    names: Sequence[str],
    types: Sequence[mlir.Type],
    placements: Sequence[Placement | None],
    hosted: Container[int],
) -> tuple[RecordedValue, ...]:
    """One side of ``main``; values of equal layers are one row."""
    known: dict[tuple[mlir.Type, int], tuple[str, str, float]] = {}
    rows: list[RecordedValue] = []
    sides = zip(names, types, placements, strict=True)
    for number, (name, type_, placement) in enumerate(sides):
        # There is one object for each placement, which takes long to hash.
        key = type_, id(placement)
        if key not in known:
            known[key] = _tensor(type_, placement)
        rows.append(RecordedValue(name, *known[key], 1, number in hosted))
    folds = folded(
        rows, lambda row: row.id, lambda row: (row.type, row.sharding, row.bytes, row.is_on_host)
    )
    return tuple(
        replace(fold.first, id=fold.name, bytes=fold.first.bytes * fold.count, count=fold.count)
        for fold in folds
    )


def _result_names(main: mlir.Operation, count: int) -> list[str]:
    """JAX's names of the results, ``result['w']``."""
    names = [f"result {number}" for number in range(count)]
    if "res_attrs" in main.attributes:
        for number, attributes in enumerate(mlir.ArrayAttr(main.attributes["res_attrs"])):
            entry = mlir.DictAttr(attributes)
            if RESULT_INFO in entry:
                names[number] = mlir.StringAttr(entry[RESULT_INFO]).value or names[number]
    return names


def _tensor(type_: mlir.Type, placement: Placement | None) -> tuple[str, str, float]:
    """Type, sharding, and bytes on one device."""
    sharding, size = "", 0.0
    if placement is not None and isinstance(type_, mlir.RankedTensorType):
        sharding = str(placement.sharding)
        shape = placement.sharding.local_shape(type_.shape)
        size = prod(shape) * element_bits(type_.element_type) / 8
    return type_text(type_), sharding, size


# Ops


class _Ops:
    """Rows of the ops of a plan."""

    def __init__(self, costed: Costed, names: OpNames) -> None:
        self.costed = costed
        self.names = names
        plan = costed.plan
        self.seconds, self.flops, self.bytes = plan.op_seconds, plan.op_flops, plan.op_bytes
        self.packed_bytes = plan.op_packed_bytes
        self.strategies, self.of_op = plan.strategies, plan.op_strategy
        self.shardings = plan.shardings
        self.trips = costed.imported.program.op_trips
        self.type_text = cache(type_text)
        self.chip, self.devices = costed.cluster.chip, costed.cluster.num_devices
        self.alike = names.alike(costed.imported.program, plan)
        """Those of equal layers, one row a group."""

    def rows(self) -> Iterator[RecordedOp]:
        """In the order of the program."""
        reads = _Reads(self.costed.imported, self.alike.group_of)
        names, alike = self.names.common_names(self.alike), self.alike
        groups = zip(names, alike.first, alike.count, alike.occurrence, strict=True)
        for row, (name, first, count, occurrence) in enumerate(groups):
            yield self._row(first, count, occurrence, name, reads.of(first, row))

    def _row(
        self, number: int, count: int, occurrence: int, name: str, reads: tuple[int, ...]
    ) -> RecordedOp:
        chip, devices = self.chip, self.devices
        rule = self.costed.imported.program.rule_of(number)
        once, size, runs = self.seconds[number], self.bytes[number], self.trips[number]
        idle = self._idle_axes(number) if once > 0 else ()
        all_runs = runs * count
        return RecordedOp(
            id=f"{self.names.name(number)}#{occurrence}",
            name=name,
            op=self.names.word(number),
            phase=self.names.phase(number),
            frame=self.names.frame(number),
            count=count,
            runs=runs,
            type=", ".join(map(self.type_text, self.names.types(number))),
            strategy=self._strategy(self.of_op[number]),
            seconds=once * all_runs,
            roofline_seconds=min(once, roofline_seconds(rule, chip, devices, size)) * all_runs,
            flops=self.flops[number] * all_runs,
            bytes=size * all_runs,
            bound=bound_of(rule, chip, once, size, self.packed_bytes[number]).value
            if once > 0
            else "",
            idle_axes=idle,
            uncut=self._uncut(rule, number) if idle else (),
            reads=reads,
        )

    def _strategy(self, row: int) -> str:
        operands, results = self.strategies[row]
        texts = self.costed.sharding_texts
        sides = (
            ", ".join("[]" if one < 0 else texts[one] for one in side)
            for side in (operands, results)
        )
        return " -> ".join(sides)

    def _idle_axes(self, number: int) -> tuple[str, ...]:
        """Axes that cut neither an operand nor a result."""
        operands, results = self.strategies[self.of_op[number]]
        used = {
            axis
            for one in (*operands, *results)
            if one != NO_VALUE
            for axes in self.shardings[one]
            for axis in axes
        }
        axes = enumerate(self.costed.mesh.axis_names)
        return tuple(name for axis, name in axes if axis not in used)

    def _uncut(self, rule: _core.Rule, number: int) -> tuple[int, ...]:
        """Sizes of the factors on one device, of those that are larger than 1."""
        shardings, sizes = self.shardings, self.costed.mesh.axis_sizes
        operands, results = self.strategies[self.of_op[number]]
        left = [factor.size for factor in rule.factors]
        cut: set[int] = set()
        for tensors, rows in ((rule.operands, operands), (rule.results, results)):
            for tensor, row in zip(tensors, rows, strict=True):
                if row == NO_VALUE:
                    continue
                for factors, axes in zip(tensor.dims, shardings[row], strict=True):
                    parts = prod(sizes[axis] for axis in axes)
                    for factor in factors:
                        if parts > 1 and factor not in cut and left[factor] % parts == 0:
                            cut.add(factor)
                            left[factor] //= parts
                            break
        return tuple(size for size in left if size > 1)


class _Reads:
    """Which rows make what an op reads."""

    def __init__(self, imported: ImportedProgram, row_of: NDArray[np.int32]) -> None:
        self.program, self.row_of = imported.program, row_of
        self.makers = self.program.makers
        self.sources: defaultdict[int, list[int]] = defaultdict(list)
        """For what a loop or a branch calls otherwise: what it was."""
        for source, target in self.program.joins:
            self.sources[target].append(source)

    def of(self, number: int, row: int) -> tuple[int, ...]:
        """Rows whose results the op reads, in their order, without its own."""
        # Scalars are all of one number, which says nothing of who makes them.
        waiting = [value for value in self.program.operands_of(number) if value != NO_VALUE]
        seen, rows = {NO_VALUE, *waiting}, set[int]()
        while waiting:
            value = waiting.pop()
            maker = self.makers[value]
            if maker != NO_VALUE:
                rows.add(int(self.row_of[maker]))
            others = [one for one in self.sources.get(value, ()) if one not in seen]
            seen.update(others)
            waiting += others
        return tuple(sorted(rows - {row}))


# Collectives


def _placed_collectives(
    costed: Costed, names: OpNames, row_of: NDArray[np.int32]
) -> list[PlacedCollective]:
    """All of them, in the order of their reshards."""
    plan, program = costed.plan, costed.imported.program
    table, makers, joins = plan.reshards, program.makers, program.joins
    found = moves(costed.imported, plan, costed.mesh)
    values = _Moved(costed.imported, names, {one.value for one in found if one.value >= 0})

    @cache
    def asked_by(number: int | None) -> tuple[str, str, int, str, tuple[int, ...]]:
        """Name, phase, frame, scope and rows of an op."""
        if number is None:
            return "", "", -1, "", ()
        at = names.name(number), names.phase(number), names.frame(number)
        return *at, names.scope(number).path, (int(row_of[number]),)

    def row(move: Moved, number: int | None, where: _core.Place) -> RecordedCollective:
        name, type_ = values.named(move.value)
        of, phase, frame, scope, rows = asked_by(number)
        what = move.what.partition(" of ")[0]
        if where is _core.Place.JOIN or not of:
            target = f"{of or name}, kept elsewhere"
        else:
            target = f"{name or 'a scalar'} for {what} of {of}"
        kind = move.kind.value
        return RecordedCollective(
            id=f"{kind} of {target}",
            kind=kind,
            axes=move.axes,
            bytes=move.sent_bytes,
            times=move.times,
            seconds=move.times * move.seconds,
            location=move.location,
            of=move.what,
            value=name,
            type=type_,
            phase=phase,
            frame=frame,
            scope=scope,
            count=1,
            ops=rows,
            is_operand=where in (_core.Place.OPERAND, _core.Place.HALO),
            exposed_seconds=move.exposed_seconds,
            slack_seconds=move.slack_seconds,
        )

    placed: list[PlacedCollective] = []
    places, indices = table.place, table.index
    for move, at in zip(found, plan.collectives.reshard, strict=True):
        where, number, join = places[at], indices[at], None
        if where is _core.Place.JOIN:
            maker, join = int(makers[move.value]), joins[number]
            number = None if maker == NO_VALUE else maker
        placed.append(PlacedCollective(row(move, number, where), where, number, join))
    return placed


class _Moved:
    """Names and types of values that collectives move."""

    def __init__(self, imported: ImportedProgram, names: OpNames, values: Iterable[int]) -> None:
        self.names = names
        self.makers, self.casts = imported.program.makers, imported.rounded
        self.type_text = cache(type_text)
        self.others = value_names(imported, {value for value in values if not self._types(value)})

    def named(self, value: int) -> tuple[str, str]:
        """Both; empty for scalars and the edges of a halo."""
        if value < 0:
            return "", ""
        types = self._types(value)
        if types:
            return self.names.word(self.makers[value]), self.type_text(types[0])
        other = self.others[value]
        return other.name, other.type

    def _types(self, value: int) -> Sequence[mlir.Type]:
        """Type of the one result of the op that makes the value; none where it is not so plain."""
        maker = int(self.makers[value])
        # What a cast makes that only the core knows is called what it casts.
        is_plain = maker != NO_VALUE and maker not in self.casts
        types = self.names.types(maker) if is_plain else ()
        return types if len(types) == 1 else ()


def _folded_collectives(rows: Iterable[RecordedCollective]) -> list[RecordedCollective]:
    """Those of equal layers once, those that take longest first."""
    folds = folded(
        rows,
        lambda one: one.id,
        lambda one: (one.kind, one.axes, one.bytes, one.times, one.seconds, one.phase, one.frame),
    )
    return sorted((_folded_collective(fold) for fold in folds), key=lambda one: -(one.seconds or 0))


def _folded_collective(fold: Fold[RecordedCollective]) -> RecordedCollective:
    first, members = fold.first, fold.members
    return replace(
        first,
        id=fold.name,
        times=sum(one.times for one in members),
        seconds=sum(one.seconds or 0.0 for one in members),
        exposed_seconds=sum(one.exposed_seconds or 0.0 for one in members),
        slack_seconds=min(one.slack_seconds or 0.0 for one in members),
        value=common_name([one.value for one in members]),
        scope=common_name([one.scope for one in members]),
        count=fold.count,
        ops=tuple(sorted({row for one in members for row in one.ops})),
    )


# Memory


def _memory(costed: Costed, names: OpNames) -> Iterator[MemoryPoint]:
    """The fullest point of each stretch of the program."""
    live, ops = costed.plan.live_bytes, costed.imported.core_ops
    count = min(MOST_POINTS, len(live))
    for row in range(count):
        first, last = row * len(live) // count, (row + 1) * len(live) // count
        stretch = live[first:last]
        size = max(stretch)
        fullest = first + stretch.index(size)
        if fullest < len(ops):
            name, line = names.word(fullest), names.location(fullest)
            yield MemoryPoint(fullest, name, line, names.phase(fullest), size)
        else:
            yield MemoryPoint(fullest, "end", None, "", size)
