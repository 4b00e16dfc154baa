"""Where XLA's partitioner does not take the steps of least resharding between values.

Sums of a matmul are scattered where both operands are read as they lie. Where one is not, and they
lie unlike along what is summed, or the dim that the sums are scattered along is cut already, the
partitioner cuts nothing that is summed: it cuts the operands as the result is cut, which gathers
one of them. And sums are not scattered along a dim that another axis, by which no operand is cut,
cuts as well: they are reduced whole. Operands that lie alike along what is summed are summed where
they lie, also where it would send less to cut them along something else. Compiled ahead of time for
8 GPUs by jaxlib 0.10.2, ``x^T y`` and ``h w`` with a mesh of a=4, b=2; run nowhere
(bench/truth/partitioned.py):

    x [{a, b}, {}]   y [{a}, {b}]      ->  [{}, {b}]      gathers x over b, reduces over a
    x [{a, b}, {}]   y [{a}, {b}]      ->  [{}, {b, a}]   gathers x over a, b, cuts y as the result
    x [{a}, {}]      y [{a}, {b}]      ->  [{}, {b, a}]   reduce-scatters over a
    x [{a}, {}]      y [{a}, {}]       ->  [{}, {b, a}]   reduces over a
    h [{a}, {b}]     w [{b, a}, {}]    ->  [{a, b}, {}]   gathers w over a, b, cuts h as the result
    h [{a}, {b}]     w [{b}, {}]       ->  [{a, b}, {}]   reduce-scatters over b
    x [{a, b}, {}]   y [{a, b}, {}]    ->  [{}, {}]       reduces over a, b
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from autoshard._core import Place
from autoshard.explain.question import Dims, Subject
from autoshard.explain.reproduced import Propagated, SentOnce, propagated
from autoshard.importer.imported_program import NO_VALUE, ImportedProgram
from autoshard.importer.pins import DimPin, Pin, Pinned
from autoshard.ir import stablehlo
from autoshard.ir.types import tensor_bytes
from autoshard.planned.summarize import line_of_op

_DOT = "stablehlo.dot_general"

Readers = Sequence[tuple[int, int]]
"""(op, operand) that read a value."""


def partitioned(
    subject: Subject, pins: Sequence[Pinned], held_operands: Sequence[Readers] = ()
) -> Propagated:
    """As ``propagated``, with what the partitioner does for sums that it does not scatter.

    Args:
        subject: As ``propagated`` takes it, and the others.
        pins: What is held.
        held_operands: What some ops read.

    Raises:
        StrategyError: No propagation keeps the pins.
    """
    found = propagated(subject, pins, held_operands)
    held = {op for readers in held_operands for op, _ in readers}
    cut = {
        sums.op: sums.operands_as_the_result()
        for sums in _scattered(found)
        if sums.op not in held and sums.is_gathered
    }
    cut |= {
        matmul.op: matmul.operands_as_summed()
        for matmul in _matmuls(found)
        if matmul.op not in held and matmul.is_summed_elsewhere
    }
    if cut:
        first = subject.imported.program.num_values + len(held_operands)
        operands = [(op, number, dims) for op, both in cut.items() for number, dims in both.items()]
        copies = [
            Pinned(value, Pin(tuple(map(DimPin, dims))), None, "XLA's partitioner")
            for value, (_, _, dims) in enumerate(operands, start=first)
        ]
        readers = [[(op, number)] for op, number, _ in operands]
        found = propagated(subject, [*pins, *copies], [*held_operands, *readers])
    reduced = {sums.row: sums.reduced() for sums in _scattered(found) if sums.is_reduced_whole}
    return replace(
        found,
        collectives=tuple(reduced.get(one.reshard, one) for one in found.collectives),
    )


@dataclass(frozen=True)
class _Matmul:
    """A matmul of a plan."""

    imported: ImportedProgram
    op: int
    made: Dims
    """How the result is cut in the end."""
    lie: Sequence[Dims]
    """How both operands are cut where they are made."""
    read: Sequence[Dims]
    """How the matmul reads them."""

    @property
    def is_summed_elsewhere(self) -> bool:
        """Is what lies alike along what is summed moved along it, to send less of the sums?"""
        return not self._is_unlike and self._along_sums(self.lie) != self._along_sums(self.read)

    def operands_as_summed(self) -> Mapping[int, Dims]:
        """How operands are cut that are summed where they lie: else as the result is, or as they
        lie where that is whole."""
        summed = {axis for axes in self._along_sums(self.lie)[0] for axis in axes}
        taken = summed.union(*self.made)
        dims = [list(one) for one in self.lie]
        for place, made in zip(self._places, self.made, strict=True):
            axes = tuple(axis for axis in made if axis not in summed)
            for operand, dim in place:
                is_free = taken.isdisjoint(self.lie[operand][dim])
                dims[operand][dim] = self.lie[operand][dim] if is_free and not axes else axes
        return {operand: tuple(found) for operand, found in enumerate(dims)}

    @cached_property
    def _numbers(self) -> stablehlo.DotDimensionNumbers:
        attribute = self.imported.core_ops[self.op].attributes["dot_dimension_numbers"]
        return stablehlo.DotDimensionNumbers(attribute)

    @cached_property
    def _places(self) -> Sequence[Sequence[tuple[int, int]]]:
        """For each dim of the result the (operand, dim) that it is."""
        numbers = self._numbers
        batch = (numbers.lhs_batching_dimensions, numbers.rhs_batching_dimensions)
        summed = (numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions)
        places: list[Sequence[tuple[int, int]]] = [
            ((0, left), (1, right)) for left, right in zip(*batch, strict=True)
        ]
        for operand in (0, 1):
            taken = {*batch[operand], *summed[operand]}
            free = [dim for dim in range(len(self.lie[operand])) if dim not in taken]
            places += [((operand, dim),) for dim in free]
        return places

    @property
    def _is_unlike(self) -> bool:
        """Do the operands lie unlike along what is summed?"""
        left, right = self._along_sums(self.lie)
        return left != right

    def _along_sums(self, cut: Sequence[Dims]) -> list[list[tuple[int, ...]]]:
        """How both operands are cut along what is summed."""
        numbers = self._numbers
        summed = (numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions)
        return [[one[dim] for dim in dims] for one, dims in zip(cut, summed, strict=True)]

    def _lying(self, place: Sequence[tuple[int, int]]) -> set[int]:
        return {axis for operand, dim in place for axis in self.lie[operand][dim]}


@dataclass(frozen=True)
class _Scattered(_Matmul):
    """Sums of a matmul that a plan scatters."""

    row: int
    """Row of the plan's reshards."""
    axes: int
    """Those that are summed over, a mask."""
    trips: float

    @property
    def is_gathered(self) -> bool:
        """Does the partitioner cut nothing that is summed instead?"""
        if self.lie == self.read or self._is_cut_besides:
            return False
        return self._is_unlike or any(not self._is_summed(axis) for axis in self._shared)

    @property
    def is_reduced_whole(self) -> bool:
        """Are they reduced, and cut then?"""
        return self._is_cut_besides and not self._is_unlike

    def operands_as_the_result(self) -> Mapping[int, Dims]:
        """How operands are cut that lie as the result, and whole along what is summed."""
        dims: list[list[tuple[int, ...]]] = [[()] * len(one) for one in self.lie]
        for place, axes in zip(self._places, self.made, strict=True):
            for operand, dim in place:
                dims[operand][dim] = axes
        return {operand: tuple(found) for operand, found in enumerate(dims)}

    def reduced(self) -> SentOnce:
        """The all-reduce of them."""
        mesh = self.imported.mesh
        cut = [axis for place in self._places for axis in self._lying(place)]
        axes = [axis for axis in range(len(mesh.axis_sizes)) if self._is_summed(axis)]
        pieces, summed = (prod(mesh.axis_sizes[a] for a in some) for some in (cut, axes))
        size = tensor_bytes(self.imported.core_ops[self.op].results[0].type) / pieces
        names = tuple(mesh.axis_names[axis] for axis in axes)
        key = ("all-reduce", names, line_of_op(self.imported, self.op))
        return SentOnce(key, 2 * (1 - 1 / summed) * size * self.trips, self.row)

    @property
    def _shared(self) -> Iterator[int]:
        """Axes of dims that sums are scattered along."""
        return (axis for axes in self.made if any(map(self._is_summed, axes)) for axis in axes)

    @property
    def _is_cut_besides(self) -> bool:
        """Does an axis by which no operand is cut there cut a dim that sums are scattered along?"""
        return any(
            not self._is_summed(axis) and axis not in self._lying(place)
            for place, axes in zip(self._places, self.made, strict=True)
            if any(map(self._is_summed, axes))
            for axis in axes
        )

    def _is_summed(self, axis: int) -> bool:
        return bool(self.axes >> axis & 1)


def _matmuls(found: Propagated) -> Iterator[_Matmul]:
    imported, held = found.imported, found.plan.value_sharding
    rows = _rows(found)
    for value, maker in enumerate(imported.program.makers.tolist()):
        if maker == NO_VALUE or maker in imported.rounded:
            continue
        if imported.core_ops[maker].name == _DOT:
            lie, read = _operands(found, rows, maker)
            yield _Matmul(imported, maker, rows[held[value]], lie, read)


def _scattered(found: Propagated) -> Iterator[_Scattered]:
    imported, table = found.imported, found.plan.reshards
    rows = _rows(found)
    columns = zip(table.place, table.index, table.partial_axes, table.trips, strict=True)
    for row, (place, op, partial, trips) in enumerate(columns):
        if place is not Place.RESULT or not partial or imported.core_ops[op].name != _DOT:
            continue
        made = rows[table.to_sharding[row]]
        if any(partial >> axis & 1 for axes in made for axis in axes):
            lie, read = _operands(found, rows, op)
            yield _Scattered(imported, op, made, lie, read, row, partial, trips)


def _rows(found: Propagated) -> list[Dims]:
    return [tuple(map(tuple, dims)) for dims in found.plan.shardings]


def _operands(found: Propagated, rows: Sequence[Dims], op: int) -> tuple[list[Dims], list[Dims]]:
    """How both operands of a matmul lie, and how it reads them."""
    plan = found.plan
    read, _ = plan.strategies[plan.op_strategy[op]]
    values = found.imported.program.operands_of(op)[:2]
    lie = [rows[plan.value_sharding[value]] for value in values]
    return lie, [rows[operand] for operand in read[:2]]
