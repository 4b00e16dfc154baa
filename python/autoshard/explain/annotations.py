"""Lines of user code with which Shardy arrives at a plan, none of which can be left out.

    print(plan.annotations())
    plan.annotations().to_python()

A line is the sharding of an argument, ``params['layers'][*]['w1']`` with all its layers, or a
``with_sharding_constraint`` on what a line of the program makes, or on what its ops read where the
plan has them read a value otherwise than it is held. They are chosen one after the
other: the program is propagated with those there are, and of all that comes out otherwise than
planned, the next ones are what takes most bytes. Then it is propagated without each of them, and
what is not missed goes; another choice of lines may still be smaller. Propagation is Shardy's, of
the installed jaxlib, as ``jax.jit`` runs it: what no line speaks of is open to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import jax

from autoshard._core import Place
from autoshard.errors import PlanError
from autoshard.explain.folding import common_name, of_any_layer
from autoshard.explain.line_choice import LineChoice
from autoshard.explain.line_types import type_of_lines
from autoshard.explain.propagated_lines import propagation_of
from autoshard.explain.question import Dims, Subject
from autoshard.explain.reproduced import Reproduced, compared
from autoshard.explain.values import named_values
from autoshard.frontend.logical_axes import Axes, Spec
from autoshard.importer.imported_program import NO_VALUE
from autoshard.planned.summarize import line_of, main_values, short_name, type_text
from autoshard.sharding import Mesh

MOST_LINES = 20
"""So many lines are taken if fewer do not reproduce enough."""

_OF_ARGUMENTS = 8.0
"""So many times its bytes an argument counts: it says at once how its gradient, its state and their
stacks in loops lie, each of which has as many bytes."""


def axes_text(axes: Axes) -> str:
    """How a dim is cut: ``None``, ``'data'``, ``('x', 'y')``."""
    return "None" if not axes else repr(axes[0] if len(axes) == 1 else axes)


def spec_text(spec: Spec) -> str:
    """``P('data', None, ('x', 'y'))``."""
    entries = list(map(axes_text, spec))
    while entries and entries[-1] == "None":
        entries.pop()
    return f"P({', '.join(entries)})"


@dataclass(frozen=True)
class Annotation:
    """One line to write."""

    name: str
    """``params['layers'][*]['w1']`` of an argument, ``dot_general`` of what a line makes,
    ``operand 0 of convert`` of what it reads."""
    location: str | None
    """``file:line`` whose value is constrained; None for an argument."""
    type: str
    """``4096x11008xbf16``."""
    spec: Spec
    """For each dim the axes that cut it."""
    count: int
    """How many values of the program it speaks of."""
    members: tuple[str, ...] = ()
    """The arguments that it speaks of, by name."""
    is_whole: bool = False
    """Whether it is what its line makes in the end, so that it has the name that is assigned."""

    @property
    def spec_text(self) -> str:
        """``P('data', None, ('x', 'y'))``."""
        return spec_text(self.spec)


@dataclass(frozen=True)
class Annotations(Reproduced):
    """Lines that reproduce a plan, and what they do not."""

    name: str
    """The function."""
    mesh: Mesh
    lines: tuple[Annotation, ...]
    """Those that matter most first."""
    untried: int = 0
    """How many of the lines may not be needed: the program is so big that they were not tried."""
    not_by_shardy: str = ""
    """Why Shardy was not asked what it makes of the lines, but the planner; empty where it was."""

    def spec_of(self, argument: str) -> Any:
        """The ``PartitionSpec`` of an argument by its name; None where no line speaks of it."""
        for line in self.lines:
            if argument in line.members:
                return jax.sharding.PartitionSpec(*(axes or None for axes in line.spec))
        return None

    def to_patch(self) -> str:
        """A unified diff of the user's files, of the lines that can be edited safely.

        Safe is ``name = ..`` on one line of a file that is here and imports ``jax``, if what is
        constrained is what the line makes in the end, outside of ``jax.vmap``, under which it has
        fewer dims than the op. The other lines are named behind it.
        """
        from autoshard.explain.annotation_patch import patch_text

        return patch_text(self)

    @property
    def arguments(self) -> Mapping[str, Annotation]:
        """Lines of arguments, by their names."""
        return {line.name: line for line in self.lines if line.location is None}

    @property
    def constraints(self) -> tuple[Annotation, ...]:
        """Lines that constrain what the program makes."""
        return tuple(line for line in self.lines if line.location is not None)

    def to_python(self) -> str:
        """A module of PartitionSpecs: the mesh, the arguments, and the lines to constrain."""
        axes = ", ".join(f'"{axis.name}": {axis.size}' for axis in self.mesh.axes)
        rows = [
            f'"""Shardings of {self.name}: {self.reproduced:.1%} of the bytes of its plan."""',
            "",
            "from jax.sharding import PartitionSpec as P",
            "",
            f"MESH = {{{axes}}}",
            "",
            "# By the names of the arguments; * stands for every layer.",
            "ARGUMENTS = {",
            *(f'    "{name}": {line.spec_text},' for name, line in self.arguments.items()),
            "}",
            "",
            "# x = jax.lax.with_sharding_constraint(x, SPEC) of what these lines make, or of the",
            "# operand that they read.",
            "CONSTRAINTS = [",
            *(
                f'    ("{line.location}", "{line.name}", "{line.type}", {line.spec_text}),'
                for line in self.constraints
            ),
            "]",
        ]
        return "\n".join(rows) + "\n"

    def __rich__(self) -> Any:
        """The lines, and what they leave out."""
        from autoshard.report.annotations_table import annotations_table

        return annotations_table(self)

    def __str__(self) -> str:
        """The same as text."""
        from autoshard.report.annotations_table import annotations_table
        from autoshard.report.plan_table import render

        return render(annotations_table(self))


def annotate(subject: Subject, most_lines: int = MOST_LINES) -> Annotations:
    """See ``Plan.annotations``.

    Args:
        subject: The plan.
        most_lines: How many lines at most.

    Raises:
        PlanError: ``most_lines`` is not above 0.
        StrategyError: No propagation keeps the lines.
    """
    return annotated_values(subject, most_lines)[0]


def annotated_values(
    subject: Subject, most_lines: int = MOST_LINES
) -> tuple[Annotations, tuple[Candidate, ...]]:
    """As ``annotate``, with the values that each line speaks of."""
    if most_lines < 1:
        raise PlanError(f"annotations: most_lines={most_lines}. Give 1 or more.")
    propagation, why_not = propagation_of(subject)
    choice = LineChoice(subject, list(_candidates(subject)), propagation)
    chosen = choice.chosen(most_lines)
    found = Annotations(
        name=subject.name,
        mesh=subject.mesh,
        lines=tuple(line.annotation for line in chosen.lines),
        untried=chosen.untried,
        not_by_shardy=why_not,
        **vars(compared(subject, choice.wanted, chosen.found)),
    )
    return found, chosen.lines


@dataclass(frozen=True, eq=False)
class Candidate:
    """A line that may be written."""

    annotation: Annotation
    values: tuple[int, ...]
    dims: Dims
    weights: tuple[float, ...]
    """Bytes of each value, times its runs in a step; none of what ops read as it is held, which the
    value's own line says of all of them."""
    readers: tuple[tuple[tuple[int, int], ...], ...] = ()
    """For each value the (op, operand) that read it there, if what ops of the line read is
    constrained; else empty."""

    @property
    def name(self) -> str:
        """What is constrained."""
        return self.annotation.name


def _candidates(subject: Subject) -> Iterator[Candidate]:
    """All lines that there are: of values, and of what ops read."""
    yield from _of_values(subject)
    yield from _of_operands(subject)


def _of_values(subject: Subject) -> Iterator[Candidate]:
    """Lines of arguments, and of what lines of the program make."""
    groups: defaultdict[tuple[Any, ...], list[tuple[str, int, float]]] = defaultdict(list)
    shapes, bits = subject.imported.value_shapes, subject.imported.value_bits

    def add(name: str, kind: tuple[Any, ...], value: int, runs: float) -> None:
        size = prod(shapes[value]) * bits[value] / 8
        groups[*kind, subject.dims[value]].append((name, value, size * runs))

    types: dict[int, str] = {}
    block = main_values(subject.imported).op.regions[0].blocks[0]
    for argument, value in zip(
        block.arguments, main_values(subject.imported).arguments, strict=True
    ):
        if value != NO_VALUE:
            types[value] = type_text(argument.type)
    seen: set[int] = set()
    for name, value in named_values(subject):
        if value in types and value not in seen:
            seen.add(value)
            add(name, (None, of_any_layer(name), types[value]), value, _OF_ARGUMENTS)
    trips = subject.imported.program.op_trips
    makers = {op: number for number, op in enumerate(subject.imported.core_ops)}
    made = type_of_lines(subject.imported)
    for op, values in subject.imported.result_values:
        number = makers.get(op)
        location = None if number is None else line_of(op)
        if location is None or number is None:
            continue
        for value, result in zip(values, op.results, strict=True):
            if value == NO_VALUE or value in seen or subject.imported.value_is_free[value]:
                continue
            seen.add(value)
            add(short_name(op), (location, type_text(result.type)), value, trips[number])
    names = subject.mesh.axis_names
    for key, members in _sayable(groups):
        dims = key[-1]
        called = [name for name, _, _ in members]
        spec = tuple(tuple(names[axis] for axis in axes) for axes in dims)
        name = common_name(called) if key[0] is None else called[-1]
        yield Candidate(
            Annotation(
                name,
                key[0],
                key[-2],
                spec,
                len(members),
                tuple(called) if key[0] is None else (),
                key[0] is not None and made.get(key[0]) == key[-2],
            ),
            tuple(value for _, value, _ in members),
            dims,
            tuple(weight for _, _, weight in members),
        )


def _of_operands(subject: Subject) -> Iterator[Candidate]:
    """Lines whose ops the plan has read a value otherwise than it is held, or ask for collectives.

    Of all that an operand of an op of the line is read as, what most bytes are read as can be said.
    """
    imported, plan = subject.imported, subject.plan
    rows = [tuple(map(tuple, dims)) for dims in plan.shardings]
    strategies, trips = plan.strategies, imported.program.op_trips
    shapes, bits = imported.value_shapes, imported.value_bits
    # By line, operand and type: by sharding: by value and runs: those that read it.
    read: defaultdict[tuple[str, str, str], dict[Dims, dict[tuple[int, float], list[Any]]]]
    read = defaultdict(dict)
    casts = {one.result for one in imported.rounded.values()}
    table = plan.reshards
    asking = {op for op, at in zip(table.index, table.place, strict=True) if at is not Place.JOIN}
    for number, (op, strategy) in enumerate(zip(imported.core_ops, plan.op_strategy, strict=True)):
        if number in imported.rounded:
            continue  # no op of the user's
        operands, _ = strategies[strategy]
        values = imported.program.operands_of(number)
        for operand, (value, row) in enumerate(zip(values, operands, strict=True)):
            if value == NO_VALUE or value in casts or imported.value_is_free[value]:
                continue
            is_otherwise = rows[row] != subject.dims[value]
            location = line_of(op) if is_otherwise or number in asking else None
            if location is not None:
                name = f"operand {operand} of {short_name(op)}"
                readers = read[location, name, type_text(op.operands[operand].type)]
                key = value, trips[number]
                readers.setdefault(rows[row], {}).setdefault(key, []).append((number, operand))
    names = subject.mesh.axis_names
    for (location, name, type_), by_dims in read.items():
        weighed = {
            dims: tuple(
                (dims != subject.dims[value])
                * (prod(shapes[value]) * bits[value] / 8 * runs * len(readers))
                for (value, runs), readers in of_values.items()
            )
            for dims, of_values in by_dims.items()
        }
        dims = max(weighed, key=lambda one: sum(weighed[one]))
        spec = tuple(tuple(names[axis] for axis in axes) for axes in dims)
        of_values = by_dims[dims]
        yield Candidate(
            Annotation(name, location, type_, spec, len(of_values)),
            tuple(value for value, _ in of_values),
            dims,
            weighed[dims],
            tuple(map(tuple, of_values.values())),
        )


def _sayable(
    groups: Mapping[tuple[Any, ...], list[tuple[str, int, float]]],
) -> Iterator[tuple[tuple[Any, ...], list[tuple[str, int, float]]]]:
    """All groups of arguments; of those of lines what one sharding for each op can say.

    An op of a line in a loop over layers, or of a function that is differentiated, is written once:
    of all shardings that it has, the one with most bytes can be said.
    """
    sums: defaultdict[tuple[Any, ...], dict[Any, float]] = defaultdict(dict)
    for key, members in groups.items():
        for name, _, weight in members:
            of_op = sums[*key[:-1], name]
            of_op[key[-1]] = of_op.get(key[-1], 0.0) + weight
    said = {place: max(of_op, key=of_op.__getitem__) for place, of_op in sums.items()}
    for key, members in groups.items():
        if key[0] is not None:
            members = [one for one in members if said[*key[:-1], one[0]] == key[-1]]
        if members:
            yield key, members
