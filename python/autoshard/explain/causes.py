"""Why a collective is there, or a value is cut as it is: causes up to a pin, a limit or a price.

Nothing here knows what an op does. Each link is asked of the cost network: what if the value lay
as its reader wants it, what if the reader took it as it lies, what if the op were not cut along
what it sums? The program is planned again with that held, and then once more with the pins or the
limit of memory taken away:

    pin     without the user's pins, the alternative costs nothing
    limit   without the limit of memory it costs nothing, or it does not fit; or no rule allows it
    price   it costs so many seconds more, whatever memory there is
    inputs  it costs less, by no more than the plan gives for inputs that are cut alike
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from autoshard._core import CollectiveKind, CorePlan, FactorKind, Place
from autoshard.errors import PlanError
from autoshard.explain.question import Change, Dims, Outcome, Subject, sharding_text
from autoshard.explain.values import is_line, values_called
from autoshard.importer.imported_program import NO_VALUE, ImportedProgram, RoundedOperand
from autoshard.importer.pins import DimPin, Pin, Pinned
from autoshard.planned.collective import Collective
from autoshard.planned.summarize import axes_of_mask, line_of, short_name, value_names
from autoshard.planned.summary import bytes_text, inputs_text, seconds_text

End = Literal["pin", "limit", "price", "inputs"]

_SAME = 1e-5
"""Steps that differ by less than this part take equally long: a search ends there, too."""


@dataclass(frozen=True, slots=True)
class Link:
    """One cause: what is so, what would be instead, and what that costs."""

    because: str
    """``params['w2'] is [{}, {model}]``; empty for the thing itself."""
    instead: str
    """``as [{}, {}]``, ``without it``; empty for a pin, which leaves no choice."""
    end: End
    why: str
    """A sentence: the pins, the bytes of how many allowed, the seconds and of what."""
    extra_seconds: float | None
    """What a step would take longer within the limit; None where there is no such plan."""
    extra_bytes: float | None
    """What its peak would be larger on one device."""
    needed_bytes: float | None = None
    """What it would need of a device, where that is the limit."""
    pins: tuple[str, ...] = ()
    """The user's pins that are in the way, each with its place."""


@dataclass(frozen=True)
class Why:
    """Why something of a plan is as it is."""

    what: str
    """``all-gather over model: params['w2'] for dot_general``."""
    location: str | None
    seconds: float
    """Seconds of a step that it takes; 0 for a value."""
    links: tuple[Link, ...]
    """The first is of the thing itself, the others of what makes it so."""

    @property
    def ends(self) -> tuple[End, ...]:
        """Where each link ends."""
        return tuple(link.end for link in self.links)

    def __rich__(self) -> Any:
        """A line for the thing, and two for each link."""
        from autoshard.report.why_table import why_table

        return why_table(self)

    def __str__(self) -> str:
        """The same as text."""
        from autoshard.report.plan_table import render
        from autoshard.report.why_table import why_table

        return render(why_table(self))


def why(subject: Subject, what: int | str) -> Why:
    """Why a collective or a value is as it is.

    Args:
        subject: The plan.
        what: The number of a collective in the plan's table, from 1; the path of an argument or
            result, ``params.w2``; or a line, ``mlp.py:41``: its dearest collective, or else what
            it makes.

    Raises:
        PlanError: There is no such thing.
    """
    found = collectives(subject.imported, subject.plan)
    if isinstance(what, int) or what.isdigit():
        number = int(what)
        if not 1 <= number <= len(found):
            raise PlanError(
                f"plan of {subject.name}: collective {number} of {len(found)}. They are counted"
                " from 1, the dearest first, as the plan's table has them."
            )
        return _why_collective(subject, found[number - 1])
    at_line = [one for one in found if is_line(one.location, what)]
    if at_line:
        return _why_collective(subject, at_line[0])
    return _why_value(subject, values_called(subject, what))


# Collectives ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Moved:
    """Reshards that are alike: equal layers, or readers of one line."""

    place: Place
    op: str
    value: int
    """One of the values; ``NO_VALUE``: a scalar, or the edges of a halo."""
    before: Dims
    after: Dims
    rows: tuple[int, ...]
    """Rows of the plan's table of reshards."""


@dataclass(frozen=True)
class Group:
    """Collectives that are alike, as a plan's table shows them in one row."""

    kind: CollectiveKind
    axes: tuple[str, ...]
    location: str | None
    seconds: float
    """Seconds of all runs in a step."""
    rows: tuple[int, ...]
    """Reshards that they are steps of."""


def collectives(imported: ImportedProgram, plan: CorePlan) -> list[Group]:
    """The collectives of a plan, those that are alike once, the dearest first.

    Alike are those of one kind, over the same axes, of as many bytes, at one line.
    """
    table, steps = plan.reshards, plan.collectives
    places, indices, values, trips = table.place, table.index, table.value, table.trips
    joined = value_names(
        imported,
        {value for place, value in zip(places, values, strict=True) if place is Place.JOIN},
    )
    rows: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    sums: dict[tuple[Any, ...], float] = defaultdict(float)
    for row, kind, axes, count, held, seconds in zip(
        steps.reshard,
        steps.kind,
        steps.axes,
        steps.participants,
        steps.held_bytes,
        steps.seconds,
        strict=True,
    ):
        if places[row] is Place.JOIN:
            line = joined[values[row]].location
        else:
            line = line_of(imported.core_ops[indices[row]])
        key = (kind, axes, Collective(kind, (), count, held).moved_bytes, line)
        rows[key].append(row)
        sums[key] += trips[row] * seconds
    found = [
        Group(key[0], axes_of_mask(key[1], imported.mesh), key[3], sums[key], tuple(rows[key]))
        for key in rows
    ]
    return sorted(found, key=lambda one: -one.seconds)


def _why_collective(subject: Subject, group: Group) -> Why:
    alike = _alike(subject, group.rows)
    links = [_without(subject, alike)]
    for moved in alike[:2]:
        links += _sides(subject, moved)
    return Why(
        f"{group.kind.value} over {', '.join(group.axes)}: {_moved_text(subject, alike[0])}",
        group.location,
        group.seconds,
        tuple(links),
    )


def _alike(subject: Subject, rows: Sequence[int]) -> list[_Moved]:
    """What a group moves, by what it is and where; that with most rows first."""
    table = subject.plan.reshards
    places, indices, values = table.place, table.index, table.value
    shardings = [tuple(map(tuple, dims)) for dims in subject.plan.shardings]
    before, after = table.from_sharding, table.to_sharding
    names = value_names(subject.imported, {values[row] for row in rows} - {NO_VALUE})
    found: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row in dict.fromkeys(rows):
        value, place = values[row], places[row]
        name = "" if value == NO_VALUE else names[value].of_any_layer
        op = "" if place is Place.JOIN else short_name(subject.imported.core_ops[indices[row]])
        dims = ((), ()) if value == NO_VALUE else (shardings[before[row]], shardings[after[row]])
        found[place, op, name, *dims].append(row)
    alike = [
        _Moved(place, op, values[rows[0]], old, new, tuple(rows))
        for (place, op, _, old, new), rows in found.items()
    ]
    return sorted(alike, key=lambda one: -len(one.rows))


def _moved_text(subject: Subject, moved: _Moved) -> str:
    mesh = subject.mesh
    before, after = sharding_text(moved.before, mesh), sharding_text(moved.after, mesh)
    if moved.place is Place.HALO:
        return f"neighbours of {moved.op} exchange the edges of their blocks"
    if moved.value == NO_VALUE:
        return f"{moved.op} sums to a scalar in parts"
    name = _name(subject, moved.value)
    if moved.place is Place.JOIN:
        return f"{name}, {before}, goes on as {after}"
    if moved.place is Place.OPERAND:
        return f"{moved.op} reads {name} as {after}, which is {before}"
    if subject.plan.reshards.partial_axes[moved.rows[0]]:
        return f"{moved.op} sums in parts, and its result is {after}"
    return f"{moved.op} makes {before}, and its result is {after}"


def _without(subject: Subject, alike: Sequence[_Moved]) -> Link:
    """The best plan that has none of these reshards."""
    changes = [_forbidden(subject, moved) for moved in alike]
    change = Change(
        pins=tuple(pin for one in changes for pin in one.pins),
        kept_operands=tuple(dict.fromkeys(k for one in changes for k in one.kept_operands)),
        whole_factors=tuple(dict.fromkeys(f for one in changes for f in one.whole_factors)),
    )
    return _link(subject, "", "without it", change)


def _forbidden(subject: Subject, moved: _Moved) -> Change:
    """What a plan must keep to that does not have a reshard."""
    table = subject.plan.reshards
    if moved.place is Place.OPERAND:
        return Change(kept_operands=tuple(_readers(subject, moved)))
    if moved.place is Place.JOIN:
        joins = subject.imported.program.joins
        targets = [joins[table.index[row]][1] for row in moved.rows]
        return Change(pins=_pins(targets, moved.before))
    wanted = _has_halo if moved.place is Place.HALO else _is_summed
    if moved.place is Place.RESULT and not table.partial_axes[moved.rows[0]]:
        return Change(pins=_pins(_values(subject, moved), moved.before))
    return Change(whole_factors=tuple(_factors(subject, moved, wanted)))


def _sides(subject: Subject, moved: _Moved) -> Iterator[Link]:
    """Why the value lies as it does, and why its reader does not take it so."""
    mesh = subject.mesh
    before, after = sharding_text(moved.before, mesh), sharding_text(moved.after, mesh)
    if moved.value == NO_VALUE or moved.place not in (Place.OPERAND, Place.JOIN):
        return
    name, values = _name(subject, moved.value), _values(subject, moved)
    as_wanted = Change(pins=_pins(values, moved.after))
    yield _link(subject, f"{name} is {before}", f"as {after}", as_wanted)
    forbidden = _forbidden(subject, moved)
    as_it_lies = replace(forbidden, pins=(*forbidden.pins, *_pins(values, moved.before)))
    reader = "what it goes on to is" if moved.place is Place.JOIN else f"{moved.op} reads it as"
    yield _link(subject, f"{reader} {after}", f"as it lies, {before}", as_it_lies)


def _values(subject: Subject, moved: _Moved) -> list[int]:
    """What is moved, and what it was before the compiler rounds it."""
    values = subject.plan.reshards.value
    found = dict.fromkeys(values[row] for row in moved.rows)
    sources = (one.source for one in _roundings(subject, found))
    return list(dict.fromkeys((*found, *sources)))


def _roundings(subject: Subject, values: Iterable[int]) -> Iterator[RoundedOperand]:
    made = set(values)
    return (one for one in subject.imported.rounded.values() if one.result in made)


def _readers(subject: Subject, moved: _Moved) -> Iterator[tuple[int, int]]:
    """(op, operand) of all that read these values in that sharding: they share the copies."""
    plan, program = subject.plan, subject.imported.program
    strategies, of_op = plan.strategies, plan.op_strategy
    row = plan.reshards.to_sharding[moved.rows[0]]
    values = _values(subject, moved)
    # Nor is the cast to be made of a copy.
    made = {one.result for one in _roundings(subject, values)}
    yield from ((op, 0) for op, one in subject.imported.rounded.items() if one.result in made)
    for op, operand in program.readers_of(list(values)):
        if strategies[of_op[op]][0][operand] == row:
            yield op, operand


def _factors(subject: Subject, moved: _Moved, wanted: Any) -> Iterator[tuple[int, int]]:
    program, indices = subject.imported.program, subject.plan.reshards.index
    for row in moved.rows:
        op = indices[row]
        for number, factor in enumerate(program.rule_of(op).factors):
            if wanted(factor):
                yield op, number


def _is_summed(factor: Any) -> bool:
    return factor.kind == FactorKind.REDUCTION


def _has_halo(factor: Any) -> bool:
    return bool(factor.halo)


def _pins(values: Sequence[int], dims: Dims) -> tuple[Pinned, ...]:
    pin = Pin(tuple(DimPin(axes) for axes in dims))
    return tuple(Pinned(value, pin, None, "asked", is_users=False) for value in values)


# Values -----------------------------------------------------------------------------------------


def _why_value(subject: Subject, values: Sequence[int]) -> Why:
    value = values[0]
    dims, mesh = subject.dims[value], subject.mesh
    name = _name(subject, value)
    what = f"{name} is {sharding_text(dims, mesh)}"
    for pinned in subject.imported.pins:
        if pinned.value == value and pinned.is_users:
            text = _pin_text(subject, pinned)
            return Why(
                what, None, 0.0, (Link(text, "", "pin", "no choice", None, None, pins=(text,)),)
            )
    location = value_names(subject.imported, [value])[value].location
    if any(dims):
        whole: Dims = ((),) * len(dims)
        change = Change(pins=_pins(values, whole))
        return Why(what, location, 0.0, (_link(subject, what, "whole", change),))
    links = [
        _link(subject, what, f"as {sharding_text(cut, mesh)}", Change(pins=_pins(values, cut)))
        for cut in _cuts(subject, value)
    ]
    if not links:
        shape = "x".join(map(str, subject.imported.value_shapes[value]))
        why = f"no axis of {mesh} divides a dim of {shape}"
        links = [Link(what, "cut", "limit", why, None, None)]
    links.sort(key=lambda link: math.inf if link.extra_seconds is None else link.extra_seconds)
    return Why(what, location, 0.0, tuple(links[:3]))


def _cuts(subject: Subject, value: int) -> Iterator[Dims]:
    """Every way to cut one dim of a value by one axis."""
    shape = subject.imported.value_shapes[value]
    for dim, size in enumerate(shape):
        for number, axis in enumerate(subject.mesh.axes):
            if size and size % axis.size == 0:
                yield tuple((number,) if at == dim else () for at in range(len(shape)))


# Links ------------------------------------------------------------------------------------------


def _link(subject: Subject, because: str, instead: str, change: Change) -> Link:
    """What an alternative costs, and which constraint makes it so."""
    held = subject.solved(change)
    extra = _extra_seconds(held, subject.step_seconds)
    extra_bytes = None if held.plan is None else held.plan.peak_bytes - subject.peak_bytes
    link = Link(because, instead, "price", "", extra, extra_bytes)
    if held.plan is not None and held.plan.step_seconds <= subject.step_seconds * (1 + _SAME):
        saved = subject.step_seconds - held.plan.step_seconds
        if _SAME * subject.step_seconds < saved <= _most_for_inputs(subject):
            why = f"{_price_text(subject, held)}; {inputs_text(subject.summary)}"
            return replace(link, end="inputs", why=why)
        if saved > _SAME * subject.step_seconds:
            why = f"{_price_text(subject, held)}; the search did not find it"
            return replace(link, why=why)
        by = _dearest_new(subject, held)
        return replace(link, why=f"a step takes as long{f', by {by}' if by else ''}")
    pins = _pins_in_the_way(subject, change)
    if pins:
        cost = "no plan keeps both" if held.plan is None else _price_text(subject, held)
        return replace(link, end="pin", why=f"{', '.join(pins)} is in the way ({cost})", pins=pins)
    if held.is_impossible:
        return replace(link, end="limit", why=f"it is impossible: {held.reason}")
    needed = _needed_bytes(subject, change, held)
    if needed is not None:
        also = "" if held.plan is None else f"; within them {_price_text(subject, held)}"
        limit = bytes_text(subject.memory_limit)
        why = f"it would take {bytes_text(needed)} of {limit} allowed{also}"
        return replace(link, end="limit", why=why, needed_bytes=needed)
    return replace(link, why=_price_text(subject, held))


def _extra_seconds(held: Outcome, step_seconds: float) -> float | None:
    return None if held.plan is None else held.plan.step_seconds - step_seconds


def _most_for_inputs(subject: Subject) -> float:
    """Seconds that another plan may be faster without having been missed."""
    given = subject.summary.inputs_seconds
    return given + _SAME * subject.step_seconds if given else 0.0


def _pins_in_the_way(subject: Subject, change: Change) -> tuple[str, ...]:
    """The user's pins without which the alternative costs nothing; none if there are no such."""
    users = [pinned for pinned in subject.imported.pins if pinned.is_users]
    if not users:
        return ()
    with_it = subject.solved(replace(change, without_pins=True))
    at_best = subject.solved(Change(without_pins=True))
    if not _costs_nothing(with_it, at_best):
        return ()
    sizes = subject.mesh.axis_sizes
    broken = [p for p in users if not p.pin.allows(with_it.dims_of(p.value), sizes)]
    return tuple(dict.fromkeys(_pin_text(subject, pinned) for pinned in broken))[:3]


def _needed_bytes(subject: Subject, change: Change, held: Outcome) -> float | None:
    """What the alternative would need, if the limit of memory is what it costs; else None."""
    if held.plan is not None and not held.plan.mem_coeff and not subject.summary.mem_coeff:
        return None  # memory had no price
    free = replace(change, memory_limit=math.inf)
    with_it = subject.solved(free)
    if held.plan is None:
        return with_it.plan.peak_bytes if with_it.plan is not None else held.peak_bytes
    at_best = subject.solved(Change(memory_limit=math.inf))
    if with_it.plan is None or with_it.plan.peak_bytes <= subject.memory_limit:
        return None
    return with_it.plan.peak_bytes if _costs_nothing(with_it, at_best) else None


def _costs_nothing(with_it: Outcome, at_best: Outcome) -> bool:
    return (
        with_it.plan is not None
        and at_best.plan is not None
        and with_it.plan.step_seconds <= at_best.plan.step_seconds * (1 + _SAME)
    )


def _price_text(subject: Subject, held: Outcome) -> str:
    """``+8.2 ms: compute +0.1 ms, communication +8.1 ms``."""
    assert held.plan is not None
    now, other = subject.summary, held.plan
    parts = [
        f"{name} {_signed(change)}"
        for name, change in (
            ("compute", other.compute_seconds - now.compute_seconds),
            ("communication", other.communication_seconds - now.communication_seconds),
        )
        if abs(change) > _SAME * subject.step_seconds
    ]
    by = _dearest_new(subject, held)
    takes = _signed(other.step_seconds - subject.step_seconds)
    return f"a step takes {takes}: {', '.join(parts)}{f', by {by}' if by else ''}"


def _dearest_new(subject: Subject, held: Outcome) -> str:
    """``an all-gather over model at mlp.py:52``: what grew most in another plan; may be empty."""
    assert held.plan is not None
    grown: dict[tuple[str, tuple[str, ...], str | None], float] = defaultdict(float)
    for sign, imported, plan in (
        (-1, subject.imported, subject.plan),
        (1, held.imported, held.plan),
    ):
        for one in collectives(imported, plan):
            grown[one.kind.value, one.axes, one.location] += sign * one.seconds
    if not grown:
        return ""
    (kind, axes, line), seconds = max(grown.items(), key=lambda item: item[1])
    if seconds <= _SAME * subject.step_seconds:
        return ""
    at = "" if line is None else f" at {line.rpartition('/')[2]}"
    return f"{kind} over {', '.join(axes)}{at} {_signed(seconds)}"


def _signed(change: float) -> str:
    return f"{'+' if change >= 0 else '-'}{seconds_text(abs(change))}"


def _pin_text(subject: Subject, pinned: Pinned) -> str:
    """``params['w2'] pinned to [{}, {model}]``, with the line of a constraint or mark."""
    at = "" if pinned.place is None else f" at {pinned.place.rpartition('/')[2]}"
    return f"{_name(subject, pinned.value)} pinned to {pinned.text}{at}"


def _name(subject: Subject, value: int) -> str:
    """``params['w2']``, or ``dot_general (mlp.py:41)``."""
    name = value_names(subject.imported, [value])[value]
    if name.location is None:
        return name.name
    return f"{name.name} ({name.location.rpartition('/')[2]})"
