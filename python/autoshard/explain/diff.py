"""Two plans side by side: terms of a step, values cut otherwise, collectives, memory.

    step             89.5 us   112 us   +25.1%
    p['w*']  8192x1024xf32   [{fsdp}, {}] -> [{}, {}]   2 values

Equal changes are one row with a count. Plans of one program are compared value by value, those of
two revisions by the names of arguments and by the paths and types of ops, in their order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from autoshard.explain.question import Dims, GivenModule, Subject, dims_of_all, sharding_text
from autoshard.importer.imported_program import ImportedProgram
from autoshard.importer.program import import_program
from autoshard.ir import mlir, op_name
from autoshard.planned.given_plan import GivenPlan
from autoshard.planned.summarize import line_of, value_names
from autoshard.planned.summary import PlanSummary
from autoshard.planned.write import mesh_of, populate_rules, remove_rules
from autoshard.sharding import Mesh, Sharding, to_v2

if TYPE_CHECKING:
    from autoshard import _core
    from autoshard.frontend.plan import Plan

_SAME = 1e-6
"""Numbers that differ by less than this part are equal."""

Unit = Literal["seconds", "bytes"]


@dataclass(frozen=True, slots=True)
class Term:
    """One number of both plans."""

    name: str
    unit: Unit
    before: float
    after: float

    @property
    def change(self) -> float:
        """How much more it became; negative: less."""
        return self.after - self.before

    @property
    def is_same(self) -> bool:
        """Equal but for rounding."""
        return _is_same(self.before, self.after)


@dataclass(frozen=True, slots=True)
class ValueChange:
    """Values that are alike and are cut otherwise in the same way."""

    name: str
    """``params['w']``, or the op that makes it; ``params['layers'][*]['w']`` of several."""
    type: str
    location: str | None
    """``file:line``; None for arguments."""
    before: str
    """``[{data}, {}]``; empty where only the other program has it."""
    after: str
    count: int
    """How many values."""


@dataclass(frozen=True, slots=True)
class CollectiveChange:
    """Collectives of one kind over the same axes, at one line."""

    kind: str
    axes: tuple[str, ...]
    location: str | None
    before_seconds: float
    """Seconds of all runs in a step; 0 without a cluster, and where there are none."""
    after_seconds: float
    before_bytes: float
    """Bytes that one device sends in all runs."""
    after_bytes: float

    @property
    def is_new(self) -> bool:
        """Only the other plan has them."""
        return not self.before_bytes

    @property
    def is_gone(self) -> bool:
        """Only the first plan has them."""
        return not self.after_bytes


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """Tensors of the peak that are alike: bytes of one device."""

    name: str
    type: str
    location: str | None
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Diff:
    """What became of one plan in another one."""

    before: str
    """``step on data=4,model=2 of v5e:4x2``."""
    after: str
    terms: tuple[Term, ...]
    """Seconds and bytes; none where a plan was made without a cluster."""
    values: tuple[ValueChange, ...]
    """Most values first."""
    collectives: tuple[CollectiveChange, ...]
    """What changed most first."""
    memory: tuple[MemoryChange, ...]

    @property
    def is_same(self) -> bool:
        """Nothing that counts has changed."""
        return not self.values and not self.collectives and all(t.is_same for t in self.terms)

    def growth(self, name: str) -> float | None:
        """How much larger a term became, as a part of what it was; None where it is not known."""
        found = next((term for term in self.terms if term.name == name), None)
        if found is None or not found.before:
            return None
        return found.after / found.before - 1

    def to_json(self) -> dict[str, Any]:
        """Everything, for ``json.dumps``."""
        return asdict(self)

    def to_markdown(self, most: int = 10) -> str:
        """A summary for a pull request, with at most so many rows of each table."""
        from autoshard.report.diff_table import diff_markdown

        return diff_markdown(self, most)

    def __rich__(self) -> Any:
        """The same as tables."""
        from autoshard.report.diff_table import diff_table

        return diff_table(self)

    def __str__(self) -> str:
        """The tables as text."""
        from autoshard.report.diff_table import diff_table
        from autoshard.report.plan_table import render

        return render(diff_table(self))


_Collective = tuple[str, tuple[str, ...], str | None, float, float]
"""Kind, axes, line, seconds and bytes of a step."""


@dataclass(frozen=True)
class Side:
    """One of two plans that are compared."""

    name: str
    module: mlir.Module
    """The ops of the program live in it."""
    imported: ImportedProgram
    mesh: Mesh
    dims: Sequence[Dims]
    """By value."""
    summary: PlanSummary | None
    collectives: tuple[_Collective, ...] = ()

    @property
    def title(self) -> str:
        """Name, mesh and cluster."""
        on = "" if self.summary is None else f" of {self.summary.cluster}"
        return f"{self.name} on {self.mesh}{on}"

    def with_axes_of(self, mesh: Mesh) -> Side:
        """On a mesh of the same shape."""
        called = dict(zip(self.mesh.axis_names, mesh.axis_names, strict=True))
        collectives = tuple(
            (kind, tuple(called.get(axis, axis) for axis in axes), *rest)
            for kind, axes, *rest in self.collectives
        )
        return replace(self, mesh=mesh, collectives=cast(tuple[_Collective, ...], collectives))

    def is_program_of(self, other: Side) -> bool:
        """Is it the same program, line by line?"""
        mine, others = self.imported, other.imported
        return mine.core_ops is others.core_ops or (
            mine.value_shapes == others.value_shapes
            and len(mine.core_ops) == len(others.core_ops)
            and all(
                (one.name, line_of(one)) == (two.name, line_of(two))
                for one, two in zip(mine.core_ops, others.core_ops, strict=True)
            )
        )


def side_of(subject: Subject) -> Side:
    """The plan of a subject."""
    return side_of_plan(subject, subject.imported, subject.plan, subject.summary)


def side_of_plan(
    subject: Subject, imported: ImportedProgram, plan: _core.CorePlan, summary: PlanSummary
) -> Side:
    """Another plan of the program of a subject."""
    dims = dims_of_all(plan)
    collectives = tuple(_collectives_of(summary))
    return Side(subject.name, subject.module, imported, imported.mesh, dims, summary, collectives)


def diff_plans(before: Plan, after: Plan) -> Diff:
    """See ``Plan.diff``."""
    return diff(*(_side(GivenModule.of(plan)) for plan in (before, after)))


def diff_files(before: str | Path, after: str | Path) -> Diff:
    """Two files of plans: what ``plan.save`` wrote, or planned modules.

    Raises:
        ParseError: One of them is neither.
        PlanError: There is no plan on a module.
    """
    return diff(*(_side(GivenModule.read(Path(path))) for path in (before, after)))


def diff(before: Side, after: Side) -> Diff:
    """What became of a plan. Axes of meshes of one shape are the same, whatever they are called.

    On meshes of other shapes values are compared by which piece each device has, and collectives
    without their axes.
    """
    titles = before.title, after.title
    if before.mesh.axis_sizes == after.mesh.axis_sizes:
        after = after.with_axes_of(before.mesh)
    is_same = after.is_program_of(before)
    return Diff(
        before=titles[0],
        after=titles[1],
        terms=tuple(_terms(before.summary, after.summary)),
        values=_values(before, after, is_same),
        collectives=_collectives(before, after, is_same),
        memory=_memory(before.summary, after.summary),
    )


# Reading ----------------------------------------------------------------------------------------


def _side(planned: GivenModule) -> Side:
    module, summary = planned.module, planned.summary
    with module.context, mlir.Location.unknown():
        mesh = mesh_of(module)
        populate_rules(module)
        try:
            imported = import_program(module, mesh, keep_strategies=False)
            dims = GivenPlan(imported).value_dims()
        finally:
            remove_rules(module)
    if summary is not None:
        collectives = tuple(_collectives_of(summary))
    elif planned.plan is not None:
        collectives = tuple(
            (
                one.kind.value,
                tuple(map(str, one.axes or ("irregular groups",))),
                None if one.place is None else one.place.rpartition(":")[0],
                0.0,
                one.total_bytes,
            )
            for one in planned.plan.collectives
        )
    else:
        collectives = ()
    return Side(planned.name, module, imported, imported.mesh, dims, summary, collectives)


def _collectives_of(summary: PlanSummary) -> Iterator[_Collective]:
    for one in summary.collectives:
        yield one.kind, one.axes, one.location, one.seconds or 0.0, one.total_bytes


# Comparing --------------------------------------------------------------------------------------


def _terms(before: PlanSummary | None, after: PlanSummary | None) -> Iterator[Term]:
    if before is None or after is None:
        return
    numbers: tuple[tuple[str, Unit, str], ...] = (
        ("step", "seconds", "step_seconds"),
        ("compute", "seconds", "compute_seconds"),
        ("communication", "seconds", "communication_seconds"),
        ("host, exposed", "seconds", "host_exposed_seconds"),
        ("computing again", "seconds", "recompute_seconds"),
        ("peak of memory", "bytes", "peak_bytes_per_device"),
        ("in host memory", "bytes", "host_bytes_per_device"),
    )
    for name, unit, field in numbers:
        term = Term(name, unit, float(getattr(before, field)), float(getattr(after, field)))
        if term.before or term.after:
            yield term


def _values(before: Side, after: Side, is_same: bool) -> tuple[ValueChange, ...]:
    rows = _same_program(before, after) if is_same else _other_program(before, after)
    names: dict[tuple[str, str, str | None, str, str], list[str]] = defaultdict(list)
    for name, any_layer, type_, location, old, new in rows:
        names[any_layer, type_, location, old, new].append(name)
    changes = [
        ValueChange(
            found[0] if len(found) == 1 else any_layer, type_, location, old, new, len(found)
        )
        for (any_layer, type_, location, old, new), found in names.items()
    ]
    return tuple(sorted(changes, key=lambda one: -one.count))


_Row = tuple[str, str, str, str | None, str, str]
"""Name, name of any layer, type, line, sharding before and after."""


def _same_program(before: Side, after: Side) -> Iterator[_Row]:
    imported = before.imported
    free = imported.value_is_free
    is_text = before.mesh.size != after.mesh.size
    old, new = _pieces_of(before, is_text), _pieces_of(after, is_text)
    changed = [
        value
        for value, (was, is_now) in enumerate(zip(before.dims, after.dims, strict=True))
        if not free[value] and old[was] != new[is_now]
    ]
    names = value_names(imported, changed)
    for value in changed:
        name = names[value]
        was = sharding_text(before.dims[value], before.mesh)
        is_now = sharding_text(after.dims[value], after.mesh)
        yield name.name, name.of_any_layer, name.type, name.location, was, is_now


def _pieces_of(side: Side, is_text: bool) -> dict[Dims, str]:
    """Which piece each device has, by sharding: equal on meshes of other shapes, too.

    Where devices are not as many, nothing is that equal: then axes count, as text.
    """
    mesh = side.mesh
    if is_text:
        return {dims: sharding_text(dims, mesh) for dims in set(side.dims)}
    names = mesh.axis_names
    return {
        dims: to_v2(Sharding.named(mesh, *(tuple(names[a] for a in axes) for axes in dims)))
        for dims in set(side.dims)
    }


@dataclass(frozen=True, slots=True)
class _Known:
    """A value of a program, and how it is cut."""

    name: str
    any_layer: str
    location: str | None
    sharding: str
    pieces: str


def _other_program(before: Side, after: Side) -> Iterator[_Row]:
    """Values with equal keys are taken for each other, the first for the first."""
    is_text = before.mesh.size != after.mesh.size
    old, new = _by_key(before, is_text), _by_key(after, is_text)
    for key in {**old, **new}:
        mine, others = old.get(key, []), new.get(key, [])
        for one, two in zip(mine, others, strict=False):
            if one.pieces != two.pieces:
                yield one.name, one.any_layer, key[1], two.location, one.sharding, two.sharding
        for one in mine[len(others) :]:
            yield one.name, one.any_layer, key[1], one.location, one.sharding, ""
        for two in others[len(mine) :]:
            yield two.name, two.any_layer, key[1], two.location, "", two.sharding


def _by_key(side: Side, is_text: bool) -> dict[tuple[str, str], list[_Known]]:
    """Values that are stored, by what they are called and their type."""
    imported = side.imported
    wanted = [v for v, is_free in enumerate(imported.value_is_free) if not is_free]
    names = value_names(imported, wanted)
    paths, pieces = _paths(imported), _pieces_of(side, is_text)
    found: dict[tuple[str, str], list[_Known]] = defaultdict(list)
    for value in wanted:
        name = names[value]
        dims = side.dims[value]
        text = sharding_text(dims, side.mesh)
        key = (f"{name.name} {paths.get(value, '')}", name.type)
        found[key].append(_Known(name.name, name.of_any_layer, name.location, text, pieces[dims]))
    return found


def _paths(imported: ImportedProgram) -> dict[int, str]:
    """JAX's name of the op that makes each value first."""
    found: dict[int, str] = {}
    for op, values in imported.result_values:
        for value in values:
            if value not in found:
                found[value] = op_name(op.location)
    return found


def _collectives(before: Side, after: Side, is_same: bool) -> tuple[CollectiveChange, ...]:
    sums: dict[tuple[str, tuple[str, ...], str | None], list[float]]
    sums = defaultdict(lambda: [0.0] * 4)
    has_same_axes = before.mesh == after.mesh
    axes_of: dict[tuple[str, str | None], list[str]] = defaultdict(list)
    for number, side in enumerate((before, after)):
        for kind, axes, location, seconds, size in side.collectives:
            # Of other revisions lines have moved: what they were counts, not where.
            where = location if is_same or location is None else location.rpartition(":")[0]
            if not has_same_axes:
                axes_of[kind, where].append(" ".join(axes))
            row = sums[kind, axes if has_same_axes else (), where]
            row[number] += seconds
            row[2 + number] += size
    changes = [
        CollectiveChange(
            kind, axes or tuple(dict.fromkeys(axes_of[kind, location])), location, *row
        )
        for (kind, axes, location), row in sums.items()
        if not (_is_same(row[0], row[1]) and _is_same(row[2], row[3]))
    ]
    return tuple(
        sorted(
            changes,
            key=lambda one: (
                -abs(one.after_seconds - one.before_seconds),
                -abs(one.after_bytes - one.before_bytes),
            ),
        )
    )


def _memory(before: PlanSummary | None, after: PlanSummary | None) -> tuple[MemoryChange, ...]:
    if before is None or after is None:
        return ()
    old, new = _peak_of(before), _peak_of(after)
    changes = [
        MemoryChange(*key, before=old.get(key, 0.0), after=new.get(key, 0.0))
        for key in {**old, **new}
        if not _is_same(old.get(key, 0.0), new.get(key, 0.0))
    ]
    return tuple(sorted(changes, key=lambda one: -abs(one.after - one.before)))


def _peak_of(summary: PlanSummary) -> dict[tuple[str, str, str | None], float]:
    found: dict[tuple[str, str, str | None], float] = defaultdict(float)
    for value in summary.peak_values:
        found[value.name, value.type, value.location] += value.bytes
    return found


def _is_same(one: float, two: float) -> bool:
    """Equal but for rounding."""
    return abs(one - two) <= _SAME * max(abs(one), abs(two))
