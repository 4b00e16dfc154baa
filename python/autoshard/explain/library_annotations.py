"""A plan's shardings of arguments in the form that a library takes, and what that reproduces.

    print(plan.annotations_for("flax"))
    print(plan.annotations_for("keras", model.trainable_variables, model.non_trainable_variables))

A form says less than a plan: a rule by name holds for all arrays that have it, a layout of Keras
cuts a dim along one axis. So Shardy propagates the program with what the form says of its
arguments, and the text says what of the plan's communication comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autoshard.errors import PlanError
from autoshard.explain.annotation import spec_text
from autoshard.explain.folding import folded
from autoshard.explain.library_forms import (
    Form,
    flax_form,
    keras_form,
    maxtext_form,
    nnx_form,
)
from autoshard.explain.propagated_lines import propagation_of
from autoshard.explain.question import Dims, Subject
from autoshard.explain.reproduced import (
    Reproduced,
    collectives_of,
    compared,
    together,
)
from autoshard.frontend.logical_axes import Spec, planned_spec
from autoshard.importer.imported_program import NO_VALUE
from autoshard.planned.summarize import main_values
from autoshard.planned.summary import bytes_text, seconds_text

if TYPE_CHECKING:
    from autoshard.frontend.plan import Plan

_MOST_SHARES = 5
"""Collectives that a text lists."""


@dataclass(frozen=True)
class Unsaid:
    """Arguments that the form cuts otherwise than the plan, equal layers once."""

    name: str
    planned: str
    """``P(('data', 'model'))``."""
    said: str
    """What the form says instead."""
    count: int


@dataclass(frozen=True)
class LibraryAnnotations(Reproduced):
    """Shardings of arguments as a library takes them."""

    library: str
    """``flax``, ``nnx``, ``maxtext``, ``keras``."""
    text: str
    """What a user pastes: Python, of MaxText YAML; comments say what it reproduces."""
    unsaid: tuple[Unsaid, ...]
    """What the form cannot say."""

    def __str__(self) -> str:
        """The text."""
        return self.text


_FORMS: dict[str, Callable[..., Form]] = {
    "flax": flax_form,
    "nnx": nnx_form,
    "maxtext": maxtext_form,
    "keras": keras_form,
}


def annotations_for(
    plan: Plan, subject: Subject, library: str, variables: Sequence[Any]
) -> LibraryAnnotations:
    """See ``Plan.annotations_for``."""
    if library not in _FORMS:
        raise PlanError(
            f"annotations_for({library!r}): no such form. There are {', '.join(_FORMS)}."
        )
    if (library == "keras") != bool(variables):
        raise PlanError(
            f"annotations_for({library!r}): the variables of a model are given for keras, and for"
            " it alone: annotations_for('keras', model.trainable_variables, ..), in the order of"
            " the arguments."
        )
    form = _FORMS[library](plan, *variables)
    wanted = together(collectives_of(subject.imported, subject.plan))
    propagation, why_not = propagation_of(subject)
    result = compared(subject, wanted, propagation(list(_lines(plan, subject, form.specs))))
    unsaid = tuple(_unsaid(plan, form.specs))
    comments = "".join(f"# {line}\n" for line in _comments(plan, result, unsaid, why_not))
    return LibraryAnnotations(
        library=library, text=comments + form.text, unsaid=unsaid, **vars(result)
    )


@dataclass(frozen=True)
class _Said:
    """What the form says of an argument."""

    name: str
    values: tuple[int, ...]
    dims: Dims
    weights: tuple[float, ...] = (0.0,)
    readers: tuple[tuple[tuple[int, int], ...], ...] = ()


def _lines(plan: Plan, subject: Subject, specs: Sequence[Spec]) -> Iterator[_Said]:
    """What the form says of each argument that the program reads."""
    number = {name: axis for axis, name in enumerate(subject.mesh.axis_names)}
    used = [(one, spec) for one, spec in zip(plan.arguments, specs, strict=True) if one.is_used]
    values = main_values(subject.imported).arguments
    for (one, spec), value in zip(used, values, strict=True):
        if value != NO_VALUE:
            # An axis of size 1 is none to the core.
            dims = tuple(tuple(number[a] for a in axes if a in number) for axes in spec)
            yield _Said(one.name, (value,), dims)


def _unsaid(plan: Plan, specs: Sequence[Spec]) -> Iterator[Unsaid]:
    pairs = zip(plan.arguments, specs, strict=True)
    others = [
        (one.name, spec_text(planned_spec(one)), spec_text(spec))
        for one, spec in pairs
        if one.is_used and planned_spec(one) != spec
    ]
    for fold in folded(others, lambda one: one[0], lambda one: one[1:]):
        _, planned, said = fold.first
        yield Unsaid(fold.name, planned, said, fold.count)


def _comments(
    plan: Plan, said: Reproduced, unsaid: Sequence[Unsaid], not_by_shardy: str
) -> Iterator[str]:
    yield (
        f"{plan.name} on {plan.mesh}: {said.reproduced:.1%} of {bytes_text(said.planned_bytes)}"
        f" that a device sends; a step of {seconds_text(said.step_seconds)}, planned"
        f" {seconds_text(said.planned_seconds)}"
    )
    if not_by_shardy:
        yield f"as the planner propagates, not Shardy: {not_by_shardy}"
    for one in unsaid:
        count = f" x {one.count}" if one.count > 1 else ""
        yield f"not said: {one.name}{count} is {one.planned} in the plan, {one.said} here"
    for one in said.missing[:_MOST_SHARES]:
        where = "" if one.location is None else f" at {one.location.rpartition('/')[2]}"
        yield (
            f"not reproduced: {one.kind} over {', '.join(one.axes)}{where}, {bytes_text(one.bytes)}"
        )
    if len(said.missing) > _MOST_SHARES:
        rest = said.missing[_MOST_SHARES:]
        size = bytes_text(sum(one.bytes for one in rest))
        yield f"not reproduced: {len(rest)} more, {size}"
    if said.lacking_bytes:
        yield f"lacking: {bytes_text(said.lacking_bytes)} of memory"
    if said.other:
        yield f"sent besides: {bytes_text(sum(one.bytes for one in said.other))}"
