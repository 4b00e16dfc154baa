"""Why not otherwise: the alternative is held fixed, and the whole program planned again.

    plan.why_not("params.w2=P(None, 'model')")
    plan.why_not(mesh="data=2,model=4")

The answer is one word and the difference: ``chosen``, ``dearer``, ``does not fit``,
``impossible``, or ``inputs`` where it is faster by no more than the plan gives for inputs that are
cut alike. A search is no proof: where the alternative turns out faster yet, the word is ``missed``.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import jax

from autoshard.errors import AutoshardError, DoesNotFitError, PlanError, ShardingError
from autoshard.explain.diff import Diff, diff, diff_plans, side_of, side_of_plan
from autoshard.explain.question import Change, Outcome, Subject
from autoshard.explain.values import values_called
from autoshard.frontend.request import Request
from autoshard.importer.pins import Pinned, pin_of_sharding
from autoshard.planned.summary import (
    PeakValue,
    PlanSummary,
    bytes_text,
    inputs_text,
    seconds_text,
    tensors_text,
)
from autoshard.sharding import Mesh, Sharding, from_partition_spec, parse_sharding

if TYPE_CHECKING:
    from autoshard.frontend.plan import Plan

Verdict = Literal["chosen", "dearer", "does not fit", "impossible", "inputs", "missed"]

_SAME = 1e-6
"""Steps that differ by less than this part take equally long."""
_OPTIONS = tuple(field.name for field in fields(Request))
_SPEC = re.compile(r"\s*(?:P|PartitionSpec)\s*\(")


@dataclass(frozen=True)
class WhyNot:
    """What another plan would be, and why it was not taken."""

    asked: tuple[str, ...]
    """``params['w2'] = [{}, {model}]``, ``mesh=data=2,model=4``."""
    verdict: Verdict
    reason: str
    """A sentence: by how much, which tensors, which rule."""
    diff: Diff | None = None
    """What became of the plan; None where nothing changes or nothing can be. Of what does not fit:
    the fastest plan if there were no limit."""
    missing_bytes: float = 0.0
    """What a device would need more than it may use, by the plan that needs least."""
    tensors: tuple[PeakValue, ...] = ()
    """The largest ones of that plan."""

    @property
    def extra_seconds(self) -> float | None:
        """What a step would take longer; None where there is no such step."""
        if self.verdict == "chosen":
            return 0.0
        if self.diff is None or self.verdict == "does not fit":
            return None
        return next(term.change for term in self.diff.terms if term.name == "step")

    def __rich__(self) -> Any:
        """The word, the sentence, and the difference as tables."""
        from autoshard.report.why_table import why_not_table

        return why_not_table(self)

    def __str__(self) -> str:
        """The same as text."""
        from autoshard.report.plan_table import render
        from autoshard.report.why_table import why_not_table

        return render(why_not_table(self))


def why_not_plan(plan: Plan, alternatives: Sequence[str], changes: Mapping[str, Any]) -> WhyNot:
    """See ``Plan.why_not``."""
    texts, options = _read(alternatives, changes)
    if set(options) <= {"mesh"}:
        mesh = options.get("mesh")
        return why_not(plan.subject, texts, None if mesh is None else str(mesh))
    if texts:
        raise PlanError(
            f"plan of {plan.name}: values ({', '.join(texts)}) and options"
            f" ({', '.join(options)}) are asked about together. Ask about one of them, or plan"
            " with the options and ask that plan about the values."
        )
    return _why_not_option(plan, options)


def why_not_subject(subject: Subject, alternatives: Sequence[str]) -> WhyNot:
    """Why a plan of a file is not otherwise: in its values, or in its mesh.

    Raises:
        PlanError: A text that names no value; an option other than the mesh, which takes the
            function.
    """
    texts, options = _read(alternatives, {})
    others = [name for name in options if name != "mesh"]
    if others:
        raise PlanError(_needs_function(subject.name, others))
    return why_not(subject, texts, options.get("mesh"))


def why_not(subject: Subject, alternatives: Sequence[str], mesh: str | None = None) -> WhyNot:
    """Why values are not cut otherwise, or the mesh is not another one.

    Args:
        subject: The plan.
        alternatives: ``params.w2=P(None, 'model')``; all of them hold together.
        mesh: ``data=2,model=4``; None: that of the plan.

    Raises:
        PlanError: A text that names no value, or no way to cut it.
        ShardingError: A mesh that is none.
    """
    if not alternatives and mesh is None:
        raise PlanError(
            f"plan of {subject.name}: why not what? Give an alternative, such as"
            ' "params.w2=P(None, \'model\')" or mesh="data=2,model=4".'
        )
    on = subject.mesh if mesh is None else Mesh.parse(mesh).without_unit_axes()
    asked = [] if mesh is None else [f"mesh={mesh}"]
    pins: list[Pinned] = []
    refusals: list[str] = []
    for text in alternatives:
        name, _, said = text.partition("=")
        for value in values_called(subject, name.strip()):
            shape = subject.imported.value_shapes[value]
            sharding = read_sharding(said, on, len(shape), name)
            try:
                sharding.check(shape)
                pin = pin_of_sharding(sharding, on, shape, None)
                pins.append(Pinned(value, pin, None, str(sharding)))
            except AutoshardError as error:
                refusals.append(f"{name}: {error.message}")
        asked.append(f"{name.strip()} = {said.strip()}")
    if on.size != subject.cluster.num_devices:
        refusals.append(
            f"mesh {on} has {on.size} devices, {subject.cluster.name} has"
            f" {subject.cluster.num_devices}"
        )
    if refusals:
        return WhyNot(tuple(asked), "impossible", "; ".join(refusals))
    if on == subject.mesh and _is_chosen(subject, pins):
        return WhyNot(tuple(asked), "chosen", "the plan does so already")
    change = Change(pins=tuple(pins), mesh=str(on) if on != subject.mesh else "")
    return _answer(subject, tuple(asked), change)


def read_sharding(text: str, mesh: Mesh, rank: int, name: str) -> Sharding:
    """``P(None, 'model')``, or ``[{}, {model}]``.

    Args:
        text: What the user wrote.
        mesh: Whose axes it names.
        rank: Dims of the value.
        name: Of the value, for errors.

    Raises:
        PlanError: It is neither.
        ShardingError: An axis that is not there, or more dims than the value has.
    """
    if not _SPEC.match(text):
        try:
            return parse_sharding(text.strip(), mesh)
        except ShardingError:
            raise
        except AutoshardError as error:
            raise PlanError(_not_read(text, name)) from error
    try:
        call = ast.parse(text.strip(), mode="eval").body
        assert isinstance(call, ast.Call)
        entries = [ast.literal_eval(argument) for argument in call.args]
        spec: Any = jax.sharding.PartitionSpec(*entries)
    except (SyntaxError, ValueError, AssertionError, TypeError) as error:
        raise PlanError(_not_read(text, name)) from error
    return from_partition_spec(spec, mesh, rank)


def _not_read(text: str, name: str) -> str:
    return (
        f"{name}={text} says no way to cut a value. Write {name}=P(None, 'model') or"
        f" {name}=[{{}}, {{model}}]."
    )


def _read(
    alternatives: Sequence[str], changes: Mapping[str, Any]
) -> tuple[list[str], dict[str, Any]]:
    """Texts about values, and options by their names."""
    unknown = [name for name in changes if name not in _OPTIONS]
    if unknown:
        raise PlanError(
            f"why_not: {unknown[0]} is no option of autoshard.plan. Options are"
            f" {', '.join(_OPTIONS)}."
        )
    texts: list[str] = []
    options = dict(changes)
    for text in alternatives:
        name, equals, said = text.partition("=")
        if not equals:
            raise PlanError(
                f"why_not: {text!r} does not say what instead. Write \"params.w2=P(None, 'model')\""
                ' or "mesh=data=2,model=4".'
            )
        if name.strip() in _OPTIONS:
            options[name.strip()] = said if name.strip() == "mesh" else _literal(said)
        else:
            texts.append(text)
    return texts, options


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def _is_chosen(subject: Subject, pins: Sequence[Pinned]) -> bool:
    sizes = subject.mesh.axis_sizes
    return all(
        subject.imported.value_is_free[pinned.value]
        or pinned.pin.allows(subject.dims[pinned.value], sizes)
        for pinned in pins
    )


# Answers ----------------------------------------------------------------------------------------


def _answer(subject: Subject, asked: tuple[str, ...], change: Change) -> WhyNot:
    outcome = subject.searched(change)
    if outcome.is_impossible:
        return WhyNot(asked, "impossible", outcome.reason)
    try:
        if outcome.plan is not None:
            return _compared(asked, _difference(subject, outcome), subject.summary)
        found = None
        if not change.mesh:
            free = subject.solved(replace(change, memory_limit=math.inf))
            found = None if free.plan is None else _difference(subject, free)
    except PlanError as error:  # the host would have to do what it cannot
        return WhyNot(asked, "impossible", error.message)
    missing = outcome.peak_bytes - subject.memory_limit
    return WhyNot(
        asked,
        "does not fit",
        f"the plan with it that needs least needs {bytes_text(outcome.peak_bytes)} of"
        f" {bytes_text(subject.memory_limit)} allowed, {bytes_text(missing)} too much. Largest"
        f" tensors: {tensors_text(outcome.tensors[:3])}",
        found,
        missing,
        outcome.tensors,
    )


def _difference(subject: Subject, outcome: Outcome) -> Diff:
    assert outcome.plan is not None
    summary = subject.summarized(outcome)
    after = side_of_plan(subject, outcome.imported, outcome.plan, summary)
    return diff(side_of(subject), after)


def _compared(asked: tuple[str, ...], found: Diff, summary: PlanSummary) -> WhyNot:
    """The word for a plan that fits, beside the one of ``summary``."""
    step = next(term for term in found.terms if term.name == "step")
    if found.is_same:
        return WhyNot(asked, "chosen", "the plan comes out the same")
    parts = ", ".join(
        f"{term.name} {_signed(term.change, term.unit == 'seconds')}"
        for term in found.terms
        if term.name != "step" and not term.is_same
    )
    takes = f"a step takes {seconds_text(step.after)} instead of {seconds_text(step.before)}"
    if -summary.inputs_seconds - _SAME * step.before <= step.change < -_SAME * step.before:
        return WhyNot(asked, "inputs", f"{takes} ({parts}): {inputs_text(summary)}", found)
    if step.change < -_SAME * step.before:
        return WhyNot(asked, "missed", f"{takes} ({parts}): the search did not find it", found)
    if step.is_same:
        takes = f"a step takes as long, {seconds_text(step.before)}"
    return WhyNot(asked, "dearer", f"{takes} ({parts})" if parts else takes, found)


def _signed(change: float, is_seconds: bool) -> str:
    text = seconds_text(abs(change)) if is_seconds else bytes_text(abs(change))
    return f"{'+' if change >= 0 else '-'}{text}"


def _why_not_option(plan: Plan, options: Mapping[str, Any]) -> WhyNot:
    """Why options are not others: the function is planned again with them."""
    from autoshard.frontend.planning import plan_source

    if plan.origin is None:
        raise PlanError(_needs_function(plan.name, list(options)))
    asked = tuple(f"{name}={value}" for name, value in options.items())
    request = replace(plan.origin.request, **cast(Any, dict(options)))
    try:
        other = plan_source(plan.origin.lowered_for(request), request)
    except DoesNotFitError as error:
        missing = error.peak_bytes - error.memory_limit
        return WhyNot(asked, "does not fit", error.message, missing_bytes=missing)
    except AutoshardError as error:
        return WhyNot(asked, "impossible", str(error))
    found = diff_plans(plan, other)
    assert plan.summary is not None  # a difference has seconds
    return _compared(asked, found, plan.summary)


def _needs_function(name: str, options: Sequence[str]) -> str:
    return (
        f"plan of {name}: {', '.join(options)} are asked about by planning the function again,"
        " which a plan that was loaded, or made by a Planner, does not have. Ask what"
        " autoshard.plan returns; a mesh, and how values are cut, can be asked of any plan."
    )
