"""Shardings of arguments as flax, MaxText and Keras write them, as text."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import jax

from autoshard.errors import PlanError
from autoshard.explain.annotation import axes_text, spec_text
from autoshard.explain.folding import folded
from autoshard.frontend.logical_axes import (
    Axes,
    Spec,
    boxes_of,
    cut_by_rules,
    planned_spec,
    rules_of,
    variables_of,
)

if TYPE_CHECKING:
    from autoshard.frontend.plan import Plan, PlannedValue

_tree: Any = jax.tree_util

Path = tuple[Any, ...]
"""Names and numbers of attributes, from a module to its variable."""

MAXTEXT_AXES = (
    "diloco",
    "data",
    "fsdp",
    "fsdp_transpose",
    "context",
    "context_autoregressive",
    "tensor",
    "tensor_transpose",
    "tensor_sequence",
    "expert",
    "autoregressive",
)
"""Axes of MaxText's mesh: each has an option ``ici_NAME_parallelism``.

Source: MaxText, ``configs/base.yml``, ``mesh_axes``, 2026.
"""


@dataclass(frozen=True)
class Form:
    """What a form says."""

    specs: tuple[Spec, ...]
    """One for each argument of the plan."""
    text: str


def _names_text(spec: Spec) -> str:
    """``(None, 'model')``."""
    return f"({', '.join(map(axes_text, spec))}{',' if len(spec) == 1 else ''})"


def _head(plan: Plan, others: str) -> str:
    axes = ", ".join(f'"{axis.name}": {axis.size}' for axis in plan.mesh.axes)
    imports = "from jax.sharding import PartitionSpec as P\n\n" if others else ""
    return f"{imports}MESH = {{{axes}}}\n\n"


def _others(plan: Plan, said: Mapping[int, Spec]) -> str:
    """Arguments of which the form says nothing, as they are planned."""
    others = [value for value in plan.arguments if id(value) not in said and value.is_used]
    named = _named([(value.name, planned_spec(value)) for value in others])
    rows = "".join(f'    "{name}": {spec_text(spec)},\n' for name, spec in named)
    if not rows:
        return ""
    return f"\n# Arguments without names for their dims.\nARGUMENTS = {{\n{rows}}}\n"


def _named(given: Iterable[tuple[str, Spec]]) -> Iterator[tuple[str, Spec]]:
    """Layers once where all are cut alike, else each by its name; only what is cut."""
    for fold in folded(given, lambda one: one[0], lambda one: None):
        alike = len({spec for _, spec in fold.members}) == 1
        rows = [(fold.name, fold.first[1])] if alike else fold.members
        yield from (row for row in rows if any(row[1]))


def _specs(plan: Plan, said: Mapping[int, Spec]) -> tuple[Spec, ...]:
    return tuple(said.get(id(value), planned_spec(value)) for value in plan.arguments)


# Flax and MaxText: rules by name


def _by_name(plan: Plan) -> tuple[Mapping[str, Axes], dict[int, Spec]]:
    """The rules, and what they say of arguments with names."""
    boxes = boxes_of(plan)
    rules = rules_of(boxes)
    return rules, {id(value): cut_by_rules(names, rules) for names, value in boxes}


def flax_form(plan: Plan) -> Form:
    """Rules for the logical axes of linen and nnx.

    Raises:
        PlanError: No argument has names for its dims.
    """
    rules, said = _by_name(plan)
    others = _others(plan, said)
    rows = "".join(f"    ({name!r}, {axes_text(axes)}),\n" for name, axes in rules.items())
    return Form(
        _specs(plan, said),
        "# With linen: nn.logical_axis_rules(RULES) around apply, and for variables\n"
        "# nn.logical_to_mesh_sharding(nn.get_partition_spec(variables), mesh, RULES);\n"
        "# with nnx: nnx.logical_axis_rules(RULES) around the model's creation.\n"
        f"{_head(plan, others)}RULES = (\n{rows})\n{others}",
    )


def maxtext_form(plan: Plan) -> Form:
    """Keys of a MaxText config: sizes of the mesh, and ``logical_axis_rules``.

    Rules of a user's config replace those of ``base.yml`` with the same name alone.

    Raises:
        PlanError: No argument has names for its dims; or an axis that MaxText's mesh has not.
    """
    unknown = [axis.name for axis in plan.mesh.axes if axis.name not in MAXTEXT_AXES]
    if unknown:
        raise PlanError(
            f"plan of {plan.name}: MaxText's mesh has no axis {unknown[0]!r}. Plan with"
            f" mesh='fsdp=..,tensor=..', of its axes: {', '.join(MAXTEXT_AXES)}."
        )
    rules, said = _by_name(plan)
    sizes = "".join(f"ici_{axis.name}_parallelism: {axis.size}\n" for axis in plan.mesh.axes)
    rows = "".join(f"  {json.dumps([name, axes])},\n" for name, axes in rules.items())
    return Form(_specs(plan, said), f"{sizes}logical_axis_rules: [\n{rows}]\n")


# nnx: names of mesh axes with each variable


def nnx_form(plan: Plan) -> Form:
    """Mesh axes for ``nnx.with_partitioning``, of each parameter by its path.

    State of an optimizer has those of its parameter.

    Raises:
        PlanError: No argument is a variable of nnx.
    """
    variables = variables_of(plan)
    parameters = [(path, value) for path, is_parameter, value in variables if is_parameter]
    if not parameters:
        raise PlanError(
            f"plan of {plan.name}: no argument is a flax.nnx.Param. Plan a function of nnx modules:"
            " autoshard.nnx_jit(step, cluster=..).plan(model, ..)."
        )
    said = {id(value): planned_spec(value) for _, value in parameters}
    for path, is_parameter, value in variables:
        if not is_parameter:
            said[id(value)] = _of_parameter(plan, path, value, parameters)
    others = _others(plan, said)
    named = _named(_by_path(parameters))
    rows = "".join(f'    "{name}": {_names_text(spec)},\n' for name, spec in named)
    return Form(
        _specs(plan, said),
        "# nnx.with_partitioning(init, PARTITIONING[..]) around the initializer of each, * being\n"
        "# every layer.\n"
        f"{_head(plan, others)}PARTITIONING = {{\n{rows}}}\n{others}",
    )


def _by_path(parameters: Sequence[tuple[Path, PlannedValue]]) -> list[tuple[str, Spec]]:
    """Parameters by path, behind the name of their argument where several modules have one path."""
    is_one = len({path for path, _ in parameters}) == len(parameters)
    return [
        (
            ".".join(map(str, path if is_one else (re.split(r"[.\[]", value.name)[0], *path))),
            planned_spec(value),
        )
        for path, value in parameters
    ]


def _of_parameter(
    plan: Plan, path: Path, value: PlannedValue, parameters: Sequence[tuple[Path, PlannedValue]]
) -> Spec:
    """How state of an optimizer is cut: as the parameter of the longest path that its own ends in.

    Raises:
        PlanError: Several parameters have that path and are cut unlike.
    """
    ends = [
        (at, one) for at, one in parameters if path[-len(at) :] == at and one.shape == value.shape
    ]
    longest = max((len(at) for at, _ in ends), default=0)
    owners = [one for at, one in ends if len(at) == longest]
    specs = {planned_spec(one) for one in owners}
    if len(specs) > 1:
        raise PlanError(
            f"annotations_for('nnx'): {value.name} of {plan.name} may be state of {owners[0].name}"
            f" and of {owners[1].name}, which have the same path in their modules and are cut"
            " unlike. Give their modules other names for these, or plan without the optimizer."
        )
    return specs.pop() if specs else ((),) * len(value.shape)


# Keras: layouts by the paths of variables


def keras_form(plan: Plan, *variables: Any) -> Form:
    """A ``LayoutMap`` of ``keras.distribution`` and the distribution by it.

    A layout cuts a dim along one axis: axes that arguments have together only are one axis of its
    mesh, else the first one is taken. State of an optimizer has the layout of its variable, and
    inputs are cut in dim 0, all along one axis, as far as it divides them.

    Args:
        plan: Of a function of variables' values.
        variables: For each positional argument its variables in the order of its arrays; None for
            one that has none.

    Raises:
        PlanError: There are more or fewer variables than arrays.
    """
    paths = dict(_paths(plan, variables))
    joined = _joined(plan)
    owners = _owners(paths)
    layouts = {
        path: tuple(_first(axes, joined) for axes in planned_spec(value))
        for path, value in paths.items()
        if path not in owners
    }
    said: dict[int, Spec] = {}
    for path, value in paths.items():
        layout, rank = layouts[owners.get(path, path)], len(value.shape)
        said[id(value)] = layout if _divides(plan, layout, value) else ((),) * rank
    inputs = [value for value in plan.arguments if id(value) not in said and value.shape]
    batch = _batch_axes(inputs, joined)
    for value in inputs:
        whole = ((),) * (len(value.shape) - 1)
        cut = (batch, *whole)
        said[id(value)] = cut if _divides(plan, cut, value) else ((), *whole)
    rows = "".join(
        f'layout_map[r"{key}"] = {_names_text(tuple(map(_one, layout)))}\n'
        for key, layout in _keys(layouts)
    )
    sizes = [prod(plan.mesh.axis_size(name) for name in axes) for axes in joined]
    names = [axes_name for axes in joined for axes_name in _one(axes)]
    return Form(
        _specs(plan, said),
        "import keras\n\n"
        f"mesh = keras.distribution.DeviceMesh({tuple(sizes)}, {tuple(names)})\n"
        f"layout_map = keras.distribution.LayoutMap(mesh)\n{rows}"
        "distribution = keras.distribution.ModelParallel(\n"
        f"    layout_map=layout_map, batch_dim_name={_one(batch)[0]!r}\n)\n"
        "keras.distribution.set_distribution(distribution)\n",
    )


def _divides(plan: Plan, spec: Spec, value: PlannedValue) -> bool:
    """Has the value so many dims, and do the axes of each divide it?"""
    return len(spec) == len(value.shape) and all(
        size % prod(map(plan.mesh.axis_size, axes)) == 0
        for size, axes in zip(value.shape, spec, strict=True)
    )


def _joined(plan: Plan) -> list[Axes]:
    """Neighbours in the mesh that arguments have together only, each group outermost first."""
    cuts = {axes for value in plan.arguments for axes in planned_spec(value)}
    groups: list[Axes] = [(name,) for name in plan.mesh.axis_names[:1]]
    for name in plan.mesh.axis_names[1:]:
        both = (*groups[-1], name)
        if all(_has(axes, both) or not set(axes) & set(both) for axes in cuts):
            groups[-1] = both
        else:
            groups.append((name,))
    return groups


def _has(axes: Axes, part: Axes) -> bool:
    return any(axes[at : at + len(part)] == part for at in range(len(axes)))


def _first(axes: Axes, joined: Sequence[Axes]) -> Axes:
    """The group of axes that cuts first."""
    return next((group for group in joined if axes[: len(group)] == group), ())


def _one(axes: Axes) -> Axes:
    """Axes that are one, by one name."""
    return ("_".join(axes),) if axes else ()


def _paths(plan: Plan, variables: Sequence[Any]) -> Iterator[tuple[str, PlannedValue]]:
    """Paths of variables with the arguments that hold their values."""
    positional, _ = plan.as_arguments(plan.arguments)
    if len(variables) > len(positional):
        raise PlanError(
            f"annotations_for('keras'): variables of {len(variables)} arguments are given,"
            f" {plan.name} has {len(positional)}."
        )
    for number, (given, argument) in enumerate(zip(variables, positional, strict=False)):
        if given is None:
            continue
        values = _tree.tree_leaves(argument)
        found = _tree.tree_leaves(given, is_leaf=lambda one: hasattr(one, "path"))
        if len(found) != len(values):
            raise PlanError(
                f"annotations_for('keras'): argument {number} of {plan.name} has {len(values)}"
                f" arrays, {len(found)} variables are given for it. Give them in its order, or"
                " None."
            )
        yield from zip((variable.path for variable in found), values, strict=True)


def _owners(paths: Iterable[str]) -> dict[str, str]:
    """For variables of an optimizer the one whose state they are: their names begin with its path.

    Example: ``adam/dense_kernel_momentum`` is of ``dense/kernel``.
    """
    flat = {path.replace("/", "_"): path for path in paths}
    found: dict[str, str] = {}
    for path in paths:
        start = path.rpartition("/")[2]
        while start and path not in found:
            start = start.rpartition("_")[0]
            if flat.get(start, path) != path:
                found[path] = flat[start]
    return found


def _batch_axes(inputs: Sequence[PlannedValue], joined: Sequence[Axes]) -> Axes:
    """What cuts dim 0 of most inputs; Keras takes the first axis of the mesh where nothing does."""
    cuts = Counter(_first(planned_spec(value)[0], joined) for value in inputs)
    return next((axes for axes, _ in cuts.most_common() if axes), joined[0])


def _keys(layouts: Mapping[str, Spec]) -> Iterator[tuple[str, Spec]]:
    """Expressions that match each path in full, those of equal layers once where that is right."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for path in layouts:
        groups[re.sub(r"\d+", r"\\d+", re.escape(path))].append(path)
    for key, paths in groups.items():
        alike = {layouts[path] for path in paths}
        if len(alike) == 1 and len(paths) > 1:
            found = [(key, layouts[paths[0]])]
        else:
            found = [(re.escape(path), layouts[path]) for path in paths]
        yield from ((key, layout) for key, layout in found if any(layout))
