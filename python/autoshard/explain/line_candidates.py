"""Lines that the user's code can say, each with all values of the program that it holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from autoshard import _core
from autoshard.explain.annotation import Annotation
from autoshard.explain.call_sites import Place
from autoshard.explain.folding import common_name, of_any_layer
from autoshard.explain.halves import Half, Halves, TransposedOperand
from autoshard.explain.line_types import type_of_lines
from autoshard.explain.line_weights import MADE
from autoshard.explain.question import Dims, Subject
from autoshard.explain.values import named_values
from autoshard.frontend.logical_axes import Spec
from autoshard.importer.imported_program import NO_VALUE
from autoshard.planned.summarize import line_of, main_values, short_name, type_text

_CALLED = {
    Half.FORWARD: "",
    Half.COTANGENT: "cotangent of ",
    Half.GRADIENT: "gradient by ",
    Half.BACKWARD: "",
}
"""What stands before the name of an op that makes a value, or is transposed."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A line that may be written."""

    annotation: Annotation
    values: tuple[int, ...]
    dims: Dims
    readers: tuple[tuple[tuple[int, int], ...], ...] = ()
    """See ``Line.readers``."""

    @property
    def name(self) -> str:
        """What is constrained."""
        return self.annotation.name

    @property
    def is_writable(self) -> bool:
        """See ``Annotation.is_writable``."""
        return self.annotation.is_writable


def candidates(subject: Subject) -> Iterator[Candidate]:
    """All lines that there are: of values, of what ops read, and of what ops make."""
    halves = Halves(subject)
    yield from _of_values(subject, halves)
    yield from _of_operands(subject, halves)
    yield from _as_made(subject, halves)


@dataclass(frozen=True)
class _Made:
    """A value that an op of a line makes."""

    value: int
    name: str
    """Name of its op."""
    place: Place | None
    """Its line; None of what another line's name is for, as the sum that JAX makes of a gather's
    cotangent."""
    dims: Dims
    weight: float
    """Its bytes, times its runs in a step."""


def _made_values(subject: Subject, halves: Halves) -> Iterator[_Made]:
    imported = subject.imported
    shapes, bits = imported.value_shapes, imported.value_bits
    trips = imported.program.op_trips
    makers = {op: number for number, op in enumerate(imported.core_ops)}
    seen: set[int] = set()
    for op, values in imported.result_values:
        number = makers.get(op)
        if number is None or not trips[number]:
            continue  # none of the core's, or nobody reads what it makes
        for value, result in zip(values, op.results, strict=True):
            place = halves.sites.of(op, result.type)
            if value == NO_VALUE or value in seen or imported.value_is_free[value]:
                continue
            seen.add(value)
            size = prod(shapes[value]) * bits[value] / 8
            yield _Made(value, short_name(op), place, subject.dims[value], size * trips[number])


class _Cotangents:
    """Cotangents of what lines make, or read, cut as most bytes of them are."""

    def __init__(self, of_places: Mapping[Place, set[int]], made: Mapping[int, _Made]) -> None:
        self._of_places = {
            place: said
            for place, values in of_places.items()
            if (said := _said([made[value] for value in sorted(values) if value in made]))
        }

    def of(self, place: Place, dims: Dims) -> tuple[list[_Made], bool]:
        """Those that a constraint to ``dims`` can hold too, and whether there are others."""
        said = self._of_places.get(place, [])
        is_alike = bool(said) and said[0].dims == dims
        return (said if is_alike else []), bool(said) and not is_alike

    def __iter__(self) -> Iterator[tuple[Place, list[_Made]]]:
        """All of them."""
        return iter(self._of_places.items())


def _said(values: Sequence[_Made]) -> list[_Made]:
    """Those of a line's values that are cut as most bytes of them are."""
    sums: defaultdict[Dims, float] = defaultdict(float)
    for one in values:
        sums[one.dims] += one.weight
    return [one for one in values if one.dims == max(sums, key=sums.__getitem__)]


def _of_values(subject: Subject, halves: Halves) -> Iterator[Candidate]:
    """Lines of arguments, and of what lines of the program make."""
    yield from _of_arguments(subject)
    of_arguments = set(main_values(subject.imported).arguments)
    made = {
        one.value: one for one in _made_values(subject, halves) if one.value not in of_arguments
    }
    cotangents = _Cotangents(halves.of_results, made)
    operands = halves.operands()
    yield from _of_transposed(subject, operands, made)
    groups: defaultdict[tuple[Half, Place], defaultdict[str, list[_Made]]]
    groups = defaultdict(lambda: defaultdict(list))
    for one in made.values():
        half = halves.of_value(one.value)
        if one.place and half is not Half.COTANGENT and one.value not in operands:
            groups[half, one.place][one.name].append(one)
    types = type_of_lines(subject.imported)
    names: dict[Place, str] = {}
    held: set[tuple[Place, Dims]] = set()
    for (half, place), by_name in groups.items():
        by_dims: defaultdict[Dims, list[_Made]] = defaultdict(list)
        for values in by_name.values():
            for one in _said(values):
                by_dims[one.dims].append(one)
        for dims, values in by_dims.items():
            values.sort(key=lambda one: one.value)
            known = {one.value for one in values}
            others, is_one_sided = [], False
            if half is Half.FORWARD:
                names[place] = values[-1].name
                held.add((place, dims))
                others, is_one_sided = cotangents.of(place, dims)
            yield _line(
                subject,
                f"{_CALLED[half]}{values[-1].name}",
                place,
                [*values, *(one for one in others if one.value not in known)],
                is_whole=half is Half.FORWARD
                and not place.within
                and types.get(place.location) == place.type,
                half=half,
                is_one_sided=is_one_sided,
            )
    for place, values in cotangents:
        if place in names and (place, values[0].dims) not in held:
            called = f"{_CALLED[Half.COTANGENT]}{names[place]}"
            yield _line(subject, called, place, values, half=Half.COTANGENT)


def _of_transposed(
    subject: Subject, operands: Mapping[int, TransposedOperand], made: Mapping[int, _Made]
) -> Iterator[Candidate]:
    """Cotangents of what lines read, as they come out of the op that makes them."""
    groups: defaultdict[TransposedOperand, list[_Made]] = defaultdict(list)
    for value, operand in operands.items():
        if value in made:
            groups[operand].append(made[value])
    for operand, values in groups.items():
        said = _said(values)
        dims = tuple(said[0].dims[dim] for dim in operand.order)
        line = _line(
            subject,
            f"{_CALLED[Half.COTANGENT]}{operand.name}",
            operand.place,
            said,
            half=Half.COTANGENT,
        )
        yield replace(line, annotation=replace(line.annotation, spec=_spec(subject, dims)))


def _of_arguments(subject: Subject) -> Iterator[Candidate]:
    main = main_values(subject.imported)
    block = main.op.regions[0].blocks[0]
    types = {
        value: type_text(argument.type)
        for argument, value in zip(block.arguments, main.arguments, strict=True)
        if value != NO_VALUE
    }
    groups: defaultdict[tuple[str, str, Dims], list[tuple[str, int]]] = defaultdict(list)
    for name, value in named_values(subject):
        if value in types:
            key = of_any_layer(name), types.pop(value), subject.dims[value]
            groups[key].append((name, value))
    for (_, type_, dims), members in groups.items():
        called = tuple(name for name, _ in members)
        values = tuple(value for _, value in members)
        yield Candidate(
            Annotation(
                common_name(called), None, type_, _spec(subject, dims), len(members), called
            ),
            values,
            dims,
        )


def _line(
    subject: Subject, name: str, place: Place, values: Sequence[_Made], **about: Any
) -> Candidate:
    """A line of all of some values, which are cut alike."""
    held = [(one.value, ()) for one in values]
    return _line_of(subject, name, place, values[0].dims, held, **about)


def _line_of(
    subject: Subject,
    name: str,
    place: Place,
    dims: Dims,
    held: Sequence[tuple[int, tuple[tuple[int, int], ...]]],
    **about: Any,
) -> Candidate:
    """A line of some values, each with the spots where it is so; see ``Line.readers``."""
    spec = _spec(subject, dims)
    annotation = Annotation(
        name, place.location, place.type, spec, len(held), within=place.within, **about
    )
    values, readers = zip(*held, strict=True)
    return Candidate(annotation, values, dims, readers if any(readers) else ())


def _spec(subject: Subject, dims: Dims) -> Spec:
    names = subject.mesh.axis_names
    return tuple(tuple(names[axis] for axis in axes) for axes in dims)


_Spots = list[tuple[int, int]]
"""(op, operand) that read a value."""

_Key = tuple[int, float]
"""A value, and its runs in a step."""


def _of_operands(subject: Subject, halves: Halves) -> Iterator[Candidate]:
    """Lines whose ops the plan has read a value otherwise than it is held, or ask for collectives.

    Of all that an operand of an op of the line is read as, what most bytes are read as can be said.
    What the forward half reads constrained, the backward half of the line reads so as well: that
    value, or the one that is computed again for it. A cotangent that all ops of the backward half
    of a line read in one way is held so right behind what the line makes, wherever else it is read.
    """
    read, again = _reads(subject, halves)
    made = {one.value: one for one in _made_values(subject, halves)}
    cotangents = _Cotangents(halves.of_operands, made)
    shapes, bits = subject.imported.value_shapes, subject.imported.value_bits
    for (place, name, half), by_dims in read.items():
        weighed = {
            dims: sum(
                prod(shapes[value]) * bits[value] / 8 * runs * len(spots)
                for (value, runs), spots in of_values.items()
                if dims != subject.dims[value]
            )
            for dims, of_values in by_dims.items()
        }
        dims = max(weighed, key=weighed.__getitem__)
        of_values = by_dims[dims]
        others, is_one_sided = [], False
        if half is Half.FORWARD:
            of_values = _with_again(of_values, again[place, dims])
            others, is_one_sided = cotangents.of(place, dims)
        held = [(value, tuple(spots)) for (value, _), spots in of_values.items()]
        held += [(one.value, ()) for one in others]
        yield _line_of(subject, name, place, dims, held, half=half, is_one_sided=is_one_sided)


def _as_made(subject: Subject, halves: Halves) -> Iterator[Candidate]:
    """Lines of what the plan makes otherwise than it holds it, as weights gathered once cast.

    A partitioner cuts an op as its result is held, and so would gather what is cast instead.
    """
    imported, table = subject.imported, subject.plan.reshards
    rows: list[Dims] = [tuple(map(tuple, dims)) for dims in subject.plan.shardings]
    columns = zip(
        table.place, table.index, table.value, table.from_sharding, table.partial_axes, strict=True
    )
    groups: defaultdict[tuple[Place, str], defaultdict[Dims, dict[int, int]]]
    groups = defaultdict(lambda: defaultdict(dict))
    for at, op, value, row, partial in columns:
        if at is not _core.Place.RESULT or partial or imported.value_is_free[value]:
            continue
        maker = imported.core_ops[op]
        if len(maker.results) != 1 or halves.is_backward(maker) or op in imported.rounded:
            continue
        place = halves.sites.of(maker, maker.results[0].type)
        if place is not None and rows[row] != subject.dims[value]:
            groups[place, f"made {short_name(maker)}"][rows[row]][value] = op
    for (place, name), by_dims in groups.items():
        # A line says one: what most values are made as.
        dims, ops = max(by_dims.items(), key=lambda one: len(one[1]))
        held = [(value, ((op, MADE),)) for value, op in ops.items()]
        yield _line_of(subject, name, place, dims, held, is_one_sided=True)


_Read = Mapping[tuple[Place, str, Half], dict[Dims, dict[_Key, _Spots]]]
"""By place, operand and half: by sharding: by value and runs: those that read it."""

_Again = Mapping[tuple[Place, Dims], dict[_Key, tuple[bool, _Spots]]]
"""By place and sharding, by value and runs: whether the forward half of the line reads it too,
and those of the backward half that read it."""


@dataclass(frozen=True)
class _CotangentRead:
    """How an op that is transposed reads the cotangent of what its line makes."""

    dims: Dims
    spot: tuple[int, int]
    name: str
    """``operand 0 of dot_general``."""
    is_said: bool
    """Otherwise than it is held, or by an op that asks for collectives."""


def _reads(subject: Subject, halves: Halves) -> tuple[_Read, _Again]:
    imported, plan = subject.imported, subject.plan
    rows: list[Dims] = [tuple(map(tuple, dims)) for dims in plan.shardings]
    strategies, trips = plan.strategies, imported.program.op_trips
    read: defaultdict[tuple[Place, str, Half], dict[Dims, dict[_Key, _Spots]]]
    read = defaultdict(dict)
    again: defaultdict[tuple[Place, Dims], dict[_Key, tuple[bool, _Spots]]]
    again = defaultdict(dict)
    forward: set[tuple[str, int]] = set()
    cotangents: defaultdict[tuple[Place, str, _Key], list[_CotangentRead]] = defaultdict(list)
    casts = {one.result for one in imported.rounded.values()}
    table = plan.reshards
    places = zip(table.index, table.place, strict=True)
    asking = {op for op, at in places if at is not _core.Place.JOIN}
    for number, (op, strategy) in enumerate(zip(imported.core_ops, plan.op_strategy, strict=True)):
        location = line_of(op)
        if number in imported.rounded or location is None or not trips[number]:
            continue  # no op of the user's, or one that compilers leave out
        operands, _ = strategies[strategy]
        values = imported.program.operands_of(number)
        half = Half.BACKWARD if halves.is_backward(op) else Half.FORWARD
        for operand, (value, row) in enumerate(zip(values, operands, strict=True)):
            if value == NO_VALUE or value in casts or imported.value_is_free[value]:
                continue
            place, key = halves.sites.of(op, op.operands[operand].type), (value, trips[number])
            assert place is not None
            if half is Half.FORWARD:
                forward.add((location, value))
            elif halves.of_value(value) is Half.FORWARD:
                of_values = again[place, rows[row]]
                is_read = (location, value) in forward
                of_values.setdefault(key, (is_read, []))[1].append((number, operand))
            name = f"operand {operand} of {short_name(op)}"
            is_said = rows[row] != subject.dims[value] or number in asking
            if half is Half.BACKWARD:
                made = halves.read_by(op, place, value)
                if made is not None:
                    one = _CotangentRead(rows[row], (number, operand), name, is_said)
                    cotangents[place, made, key].append(one)
                    continue
            if is_said:
                readers = read[place, name, half].setdefault(rows[row], {})
                readers.setdefault(key, []).append((number, operand))
    for (place, made, key), ones in cotangents.items():
        dims = ones[0].dims
        is_one_way = all(one.dims == dims for one in ones)
        if is_one_way and dims != subject.dims[key[0]]:
            name = f"read {_CALLED[Half.COTANGENT]}{made}"
            read[place, name, Half.COTANGENT].setdefault(dims, {})[key] = [one.spot for one in ones]
            continue
        for one in ones:
            if one.is_said:
                readers = read[place, one.name, Half.BACKWARD].setdefault(one.dims, {})
                readers.setdefault(key, []).append(one.spot)
    return read, again


def _with_again(
    of_values: Mapping[_Key, _Spots], again: Mapping[_Key, tuple[bool, _Spots]]
) -> dict[_Key, _Spots]:
    """With what the backward half of the line reads of the same, and of what is computed again."""
    found = {key: list(spots) for key, spots in of_values.items()}
    held = {value for value, _ in of_values}
    for key, (is_read, spots) in again.items():
        if key[0] in held or not is_read:
            found.setdefault(key, []).extend(spots)
    return found
