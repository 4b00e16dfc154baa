"""From a core's plan to its summary: collectives with lines, and the tensors of the peak."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from autoshard import _core
from autoshard._core import Place
from autoshard.importer.imported_program import NO_VALUE, FunctionValues, ImportedProgram, ValueName
from autoshard.ir import mlir, place
from autoshard.kernels.calls import COMPOSITE, kernel_call
from autoshard.planned.collective import CollectiveKind, ring_bytes
from autoshard.planned.summary import (
    AxisSummary,
    CollectiveSummary,
    PeakValue,
    PlanSummary,
)
from autoshard.sharding import Mesh, Sharding

if TYPE_CHECKING:
    from autoshard.planned.given_plan import Costed

MOST_PEAK_VALUES = 24
"""Tensors of the peak that a summary names; the rest is small beside them."""


_NUMBER = re.compile(r"\d+")


def main_values(imported: ImportedProgram) -> FunctionValues:
    """Arguments and results of ``main``, which the importer reads last."""
    return imported.functions[-1]


def value_names(imported: ImportedProgram, wanted: Collection[int]) -> Mapping[int, ValueName]:
    """Names of the values in ``wanted``, and of others."""
    missing = {value for value in wanted if value not in imported.names}
    if missing:
        _name_values(imported, missing)
    return imported.names


def _name_values(imported: ImportedProgram, missing: set[int]) -> None:
    found = imported.names
    types: dict[mlir.Type, str] = {}

    def named(name: str, type_: mlir.Type | None = None, location: str | None = None) -> ValueName:
        if type_ is not None and type_ not in types:
            types[type_] = type_text(type_)
        text = "" if type_ is None else types[type_]
        return ValueName(name, text, location, _NUMBER.sub("*", name))

    main = main_values(imported)
    block = main.op.regions[0].blocks[0]
    for number, (value, argument) in enumerate(zip(main.arguments, block.arguments, strict=True)):
        if value in missing:
            missing.discard(value)
            found[value] = named(argument_name(argument, number), argument.type)
    for one in imported.rounded.values():
        if one.result in missing:
            missing.discard(one.result)
            source = value_names(imported, [one.source])[one.source]
            found[one.result] = replace(source, type=type_text(one.type))
    makers = makers_of(imported) if missing else ()
    for value in sorted(missing):
        if makers[value] == NO_VALUE:
            continue
        missing.discard(value)
        op, values = imported.result_values[makers[value]]
        result = op.results[values.index(value)]
        found[value] = named(short_name(op), result.type, line_of(op))
    for number, value in enumerate(main.results):
        if value in missing:
            missing.discard(value)
            found[value] = named(f"result {number}")
    for value in missing:
        found[value] = named(f"value {value}")


def makers_of(imported: ImportedProgram) -> Sequence[int]:
    """For every value the number of the first of ``result_values`` that is it."""
    if imported.makers is None:
        makers = [NO_VALUE] * (len(imported.value_shapes) + 1)
        for number, (_, values) in enumerate(imported.result_values):
            for value in values:
                if makers[value] == NO_VALUE:
                    makers[value] = number
        imported.makers = makers
    return imported.makers


def argument_name(argument: mlir.Value, number: int) -> str:
    """``params['w']``; ``argument 3`` where the module has no names."""
    location = argument.location
    if isinstance(location, mlir.NameLoc) and location.name_str:
        return location.name_str
    return f"argument {number}"


def short_name(op: mlir.Operation) -> str:
    """Without the dialect; of a call of something opaque what it calls."""
    name = op.name
    if name == "stablehlo.custom_call":
        return mlir.StringAttr(op.attributes["call_target_name"]).value
    if name == COMPOSITE and (call := kernel_call(op)) is not None:
        return call.name
    return name.partition(".")[2]


def line_of(op: mlir.Operation) -> str | None:
    """``file:line`` of the user's code."""
    found = place(op.location)
    return None if found is None else found.rpartition(":")[0]


def type_text(type_: mlir.Type) -> str:
    """``4096x11008xbf16``."""
    if not isinstance(type_, mlir.RankedTensorType):
        return str(type_)
    return "x".join([*map(str, type_.shape), str(type_.element_type)])


def shardings_of(plan: _core.CorePlan, mesh: Mesh) -> list[Sharding]:
    """The distinct shardings of a plan over ``mesh``."""
    names = mesh.axis_names
    return [
        Sharding.named(mesh, *(tuple(names[axis] for axis in axes) for axes in dims))
        for dims in plan.shardings
    ]


@dataclass(frozen=True, slots=True)
class Moved:
    """One collective of one reshard of a plan."""

    kind: CollectiveKind
    axes: tuple[str, ...]
    participants: int
    held_bytes: float
    """What a device has before it."""
    times: float
    seconds: float
    """Seconds of one run."""
    location: str | None
    """``file:line`` of the op that asks for it."""
    what: str
    """``operand 1 of dot_general``."""
    value: int
    """The core's number of what is moved; -1 for a scalar and for the edges of a halo."""
    exposed_seconds: float
    """Seconds of all runs in which nothing else is done, as scheduled."""
    slack_seconds: float
    """How much longer one run could take until something waited for it."""
    reshard: int
    """Row of the plan's reshards."""

    @property
    def sent_bytes(self) -> float:
        """What one device sends in one run, on a ring."""
        return ring_bytes(self.kind, self.participants, self.held_bytes)


def moves(imported: ImportedProgram, plan: _core.CorePlan, mesh: Mesh) -> list[Moved]:
    """Every collective of a plan, in the order of its reshards."""
    table = plan.reshards
    places, indices, values = table.place, table.index, table.value
    positions, trips = table.position, table.trips
    joined = value_names(imported, _joined_values(places, values))
    ops: dict[int, tuple[str | None, str]] = {}
    names_of = cache(lambda mask: axes_of_mask(mask, mesh))
    found: list[Moved] = []
    for row, kind, axes, participants, held_bytes, seconds, exposed, slack in _rows(plan):
        where, index, value = places[row], indices[row], values[row]
        if where is Place.JOIN:
            name = joined[value]
            location, what = name.location, f"{name.name}, kept elsewhere"
        else:
            if index not in ops:
                ops[index] = (line_of_op(imported, index), short_name(imported.core_ops[index]))
            location, name = ops[index]
            side = "operand" if where is Place.OPERAND else "result"
            what = (
                f"neighbours of {name}"
                if where is Place.HALO
                else f"{side} {positions[row]} of {name}"
            )
        found.append(
            Moved(
                kind,
                names_of(axes),
                participants,
                held_bytes,
                trips[row],
                seconds,
                location,
                what,
                value,
                exposed,
                slack,
                row,
            )
        )
    return found


_Row = tuple[int, CollectiveKind, int, int, float, float, float, float]


def _rows(plan: _core.CorePlan) -> Iterator[_Row]:
    """Reshard, kind, axes, participants, held bytes, seconds, exposed seconds and slack of every
    collective."""
    rows = plan.collectives
    return zip(
        rows.reshard,
        rows.kind,
        rows.axes,
        rows.participants,
        rows.held_bytes,
        rows.seconds,
        rows.exposed_seconds,
        rows.slack_seconds,
        strict=True,
    )


def _joined_values(places: Sequence[Place], values: Sequence[int]) -> set[int]:
    """Values of the reshards that are joins."""
    return {value for place, value in zip(places, values, strict=True) if place is Place.JOIN}


def axes_of_mask(mask: int, mesh: Mesh) -> tuple[str, ...]:
    """Names of the axes in a mask of the core."""
    return tuple(name for index, name in enumerate(mesh.axis_names) if mask >> index & 1)


def line_of_op(imported: ImportedProgram, index: int) -> str | None:
    """``file:line`` of an op by its number, looked up once a program."""
    lines = imported.lines
    if index not in lines:
        lines[index] = line_of(imported.core_ops[index])
    return lines[index]


def collectives_of(
    imported: ImportedProgram, plan: _core.CorePlan, mesh: Mesh
) -> tuple[CollectiveSummary, ...]:
    """The ``moves`` that are alike once, with the sum of their runs; what takes longest first."""
    table = plan.reshards
    places, indices, values, trips = table.place, table.index, table.value, table.trips
    joined = value_names(imported, _joined_values(places, values))
    lines = imported.lines
    # Kind, axes, participants, held bytes and line -> runs, seconds, exposed seconds, least slack.
    alike: dict[tuple[CollectiveKind, int, int, float, str | None], list[float]] = {}
    for row, kind, axes, participants, held_bytes, seconds, exposed, slack in _rows(plan):
        if places[row] is Place.JOIN:
            line = joined[values[row]].location
        else:
            index = indices[row]
            line = lines[index] if index in lines else line_of_op(imported, index)
        key = (kind, axes, participants, held_bytes, line)
        sums = alike.setdefault(key, [0.0, 0.0, 0.0, math.inf])
        sums[0] += trips[row]
        sums[1] += trips[row] * seconds
        sums[2] += exposed
        sums[3] = min(sums[3], slack)
    summaries = [
        CollectiveSummary(
            kind=kind.value,
            axes=axes_of_mask(axes, mesh),
            bytes=ring_bytes(kind, participants, held_bytes),
            times=times,
            seconds=seconds,
            location=line,
            exposed_seconds=exposed,
            slack_seconds=slack,
        )
        for (kind, axes, participants, held_bytes, line), (
            times,
            seconds,
            exposed,
            slack,
        ) in alike.items()
    ]
    return _longest_first(summaries)


def peak_values(
    imported: ImportedProgram,
    live: Sequence[tuple[int, float]],
    value_sharding: Mapping[int, str],
) -> tuple[PeakValue, ...]:
    """The largest values that live at a program point, named; those of equal layers are one row."""
    names = value_names(imported, {value for value, _ in live if value != NO_VALUE})
    alike: dict[tuple[str, str, str, str | None], list[tuple[str, float]]] = {}
    for value, size in live:
        if value == NO_VALUE:
            continue
        name = names[value]
        key = (
            name.of_any_layer,
            name.type,
            value_sharding.get(value, ""),
            name.location,
        )
        alike.setdefault(key, []).append((name.name, size))
    rows = [
        PeakValue(
            name=members[0][0] if len(members) == 1 else key[0],
            type=key[1],
            sharding=key[2],
            bytes=sum(size for _, size in members),
            count=len(members),
            location=key[3],
        )
        for key, members in alike.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.bytes)[:MOST_PEAK_VALUES])


def summarize(costed: Costed, axes: Sequence[AxisSummary]) -> PlanSummary:
    """What a plan costs, in the words of the user's program.

    Args:
        costed: The plan, on the mesh whose axes it counts.
        axes: What these are for.
    """
    from autoshard.planned.manual import manual_costs  # it costs modules, too

    imported, plan, mesh = costed.imported, costed.plan, costed.mesh
    cluster, host = costed.cluster, costed.host_traffic
    manual = manual_costs(imported, mesh, cluster)
    fixed = manual.compute_seconds + manual.communication_seconds
    is_searched = plan.lower_bound_seconds > 0
    covers = (
        "all plans of this mesh that cut equal layers alike"
        if plan.bound_is_joint
        else "plans that differ in one axis and cut equal layers alike"
    )
    return PlanSummary(
        step_seconds=costed.step_seconds + fixed,
        compute_seconds=plan.compute_seconds + manual.compute_seconds,
        communication_seconds=plan.communication_seconds + manual.communication_seconds,
        peak_bytes_per_device=costed.peak_bytes,
        mem_coeff=plan.mem_coeff,
        lower_bound_seconds=plan.lower_bound_seconds + fixed if is_searched else 0.0,
        bound_covers=covers if is_searched else "no other plan",
        cluster=cluster.name,
        cluster_toml=None if cluster.is_named else cluster.to_toml(),
        mesh=str(mesh),
        devices=cluster.num_devices,
        axes=tuple(axes),
        collectives=_longest_first((*collectives_of(imported, plan, mesh), *manual.collectives)),
        peak_line=_line_of_point(imported, plan.peak_point),
        peak_values=_peak(imported, plan, mesh),
        host_bytes_per_device=host.held_bytes,
        host_transfer_bytes=host.sent_bytes,
        host_transfer_seconds=host.seconds,
        host_exposed_seconds=host.exposed_seconds,
        scheduled_seconds=plan.scheduled_seconds + host.exposed_seconds + fixed,
        all_hidden_seconds=max(plan.all_hidden_seconds + manual.compute_seconds, host.seconds),
    )


def _longest_first(collectives: Iterable[CollectiveSummary]) -> tuple[CollectiveSummary, ...]:
    return tuple(sorted(collectives, key=lambda one: -(one.seconds or 0.0)))


def _peak(imported: ImportedProgram, plan: _core.CorePlan, mesh: Mesh) -> tuple[PeakValue, ...]:
    shardings = shardings_of(plan, mesh)
    on_host, of_value = imported.host.values, plan.value_sharding
    live = [(value, size) for value, size in plan.peak_values if value not in on_host]
    used = {value: of_value[value] for value, _ in live if value != NO_VALUE}
    texts = {index: str(shardings[index]) for index in set(used.values())}
    return peak_values(imported, live, {value: texts[index] for value, index in used.items()})


def _line_of_point(imported: ImportedProgram, point: int) -> str | None:
    """The line of an op by its number; None before the first and after the last one."""
    if not 0 <= point < len(imported.core_ops):
        return None
    return line_of_op(imported, point)
