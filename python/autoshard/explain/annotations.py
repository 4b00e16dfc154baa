"""Lines of user code with which Shardy arrives at a plan, none of which can be left out.

    print(plan.annotations())
    plan.annotations().to_python()

A line is the sharding of an argument, ``params['layers'][*]['w1']`` with all its layers, or a
``with_sharding_constraint`` on what a line of the program makes, or on what its ops read where the
plan has them read a value otherwise than it is held. They are chosen one after the
other: the program is propagated with those there are, and of all that comes out otherwise than
planned, the next ones are what takes most bytes. Then it is propagated without each of them, and
what is not missed goes; another choice of lines may still be smaller. Propagation is Shardy's, of
the installed jaxlib, as ``jax.jit`` runs it: what no line speaks of is open to it. Of equal layers
that are written out it sees few, which stand for all; what the lines reproduce is of all.

JAX transposes a constraint to one of the cotangent, so a line speaks of both where the plan cuts
them alike. Where it does not, each is a line by itself, to be written with ``jax.custom_vjp``.
What is between cotangents in the backward half, which no line of the user's code names, is tried
last, and kept if it gains materially.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import jax

from autoshard.errors import PlanError
from autoshard.explain.annotation import Annotation
from autoshard.explain.chosen_lines import ProgramLines
from autoshard.explain.compiled_choice import compiled_choice
from autoshard.explain.compiled_lines import CompiledLines, LinesCompiler
from autoshard.explain.halves import Half
from autoshard.explain.line_candidates import Candidate
from autoshard.explain.line_choice import Chosen
from autoshard.explain.question import Subject
from autoshard.explain.reproduced import Reproduced, compared
from autoshard.progress import task
from autoshard.sharding import Mesh

MOST_LINES = 20
"""So many lines are taken if fewer do not reproduce enough."""

CONSTRAINED = '''
def constrained(x, forward=None, backward=None):
    """``x`` held as ``forward``, its cotangent as ``backward``; None leaves it open."""

    def held(x, spec):
        return x if spec is None else jax.lax.with_sharding_constraint(x, spec)

    @jax.custom_vjp
    def both(x):
        return held(x, forward)

    both.defvjp(lambda x: (held(x, forward), None), lambda _, given: (held(given, backward),))
    return both(x)
'''
"""What holds one of a value and its cotangent; JAX transposes a constraint to one of both."""


@dataclass(frozen=True)
class Annotations(Reproduced):
    """Lines that reproduce a plan, and what they do not."""

    name: str
    """The function."""
    mesh: Mesh
    lines: tuple[Annotation, ...]
    """Those that matter most first, and last those that cannot be written."""
    untried: int = 0
    """How many of the lines may not be needed: the program is so big, or Ctrl-C was pressed before
    it was tried without them."""
    not_by_shardy: str = ""
    """Why Shardy was not asked what it makes of the lines, but the planner; empty where it was."""
    as_compiled: CompiledLines | None = None
    """What the compiler makes of the lines, beside the plan as compiled; None: nobody asked."""

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
    def writable(self) -> int:
        """How many of the lines the user's code can say."""
        return sum(line.is_writable for line in self.lines)

    @property
    def constraints(self) -> tuple[Annotation, ...]:
        """Lines that constrain what the program makes."""
        return tuple(line for line in self.lines if line.location is not None)

    def to_python(self) -> str:
        """A module of PartitionSpecs: the mesh, the arguments, and the lines to constrain."""
        axes = ", ".join(f'"{axis.name}": {axis.size}' for axis in self.mesh.axes)
        others = self.constraints
        rows = [
            f'"""Shardings of {self.name}: {self.reproduced:.1%} of the bytes of its plan."""',
            "",
            *(["import jax"] if any(one.is_by_custom_vjp for one in others) else []),
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
            *_constraints(
                "CONSTRAINTS",
                [one for one in others if one.is_writable and not one.is_by_custom_vjp],
            ),
        ]
        if any(one.is_by_custom_vjp for one in others):
            rows += [
                "",
                "# The same of a value and not of its cotangent, and of a cotangent alone:",
                "# x = constrained(x, forward=SPEC), x = constrained(x, backward=SPEC).",
                *_constraints("FORWARD", [one for one in others if one.is_one_sided]),
                *_constraints("BACKWARD", [one for one in others if one.half is Half.COTANGENT]),
                "",
                CONSTRAINED,
            ]
        left = [one for one in others if not one.is_writable]
        if left:
            rows += ["", "# Inside the backward half, which no line names:"]
            rows += [f"#   {one.text}" for one in left]
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


def _constraints(name: str, lines: Sequence[Annotation]) -> list[str]:
    rows = [f'("{one.location}", "{one.what}", "{one.type}", {one.spec_text})' for one in lines]
    return [f"{name} = [", *(f"    {row}," for row in rows), "]"]


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
    with _annotating(subject, most_lines):
        lines = ProgramLines(subject)
        chosen = lines.chosen(most_lines)
        return _annotations(lines, chosen), chosen.lines


def annotate_as_compiled(
    subject: Subject,
    compiler: LinesCompiler,
    most_lines: int = MOST_LINES,
    compiles: int = 1,
) -> Annotations:
    """As ``annotate``, with what a compiler makes of the lines.

    Args:
        subject: The plan.
        compiler: Compiles the program with lines.
        most_lines: How many lines at most.
        compiles: How many lists of lines are compiled; from 2 on the compiler has a say in them.

    Raises:
        PlanError: ``most_lines`` or ``compiles`` is not above 0.
        StrategyError: No propagation keeps the lines.
        CompileError: As of ``LinesCompiler``.
    """
    if compiles < 1:
        raise PlanError(f"annotations: compiles={compiles}. Give 1 or more.")
    with _annotating(subject, most_lines):
        lines = ProgramLines(subject)
        found = compiled_choice(lines, lines.chosen(most_lines), compiler, most_lines, compiles)
        return replace(_annotations(lines, found.chosen), as_compiled=found.made)


def _annotating(subject: Subject, most_lines: int) -> AbstractContextManager[object]:
    if most_lines < 1:
        raise PlanError(f"annotations: most_lines={most_lines}. Give 1 or more.")
    return task(f"annotating {subject.name}", keeps_best=True)


def _annotations(lines: ProgramLines, chosen: Chosen[Candidate]) -> Annotations:
    subject = lines.subject
    return Annotations(
        name=subject.name,
        mesh=subject.mesh,
        lines=tuple(line.annotation for line in chosen.lines),
        untried=chosen.untried,
        not_by_shardy=lines.not_by_shardy,
        **vars(compared(subject, lines.wanted, chosen.found)),
    )
