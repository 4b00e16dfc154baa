"""What a plan does with a program's logical axes, as rules that flax takes.

nn.with_logical_partitioning(init, ("embed", "mlp"))    a parameter with names for its dims
plan.logical_rules()                                    (("embed", None), ("mlp", "model"))
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, cast

import jax

from autoshard.errors import AutoshardWarning, PlanError
from autoshard.frontend.plan import Plan, PlannedValue

_tree: Any = jax.tree_util

Axes = tuple[str, ...]
Spec = tuple[Axes, ...]
"""For each dim the mesh axes that cut it."""

Rule = tuple[str, str | Axes | None]
"""A logical name and the mesh axes that cut it: none, one, or several."""

Box = tuple[tuple[str | None, ...], PlannedValue]
"""Names for the dims of an argument, and the argument."""

_NNX_NAMES = ("out_sharding", "sharding_names", "sharding")
"""Where releases of flax keep the names of an ``nnx.Variable``, newest first."""


def logical_rules(plan: Plan) -> tuple[Rule, ...]:
    """See ``Plan.logical_rules``."""
    boxes = boxes_of(plan)
    rules = rules_of(boxes)
    kept_apart = [
        value for names, value in boxes if cut_by_rules(names, rules) != planned_spec(value)
    ]
    if kept_apart:
        more = f" and {len(kept_apart) - 1} more" if len(kept_apart) > 1 else ""
        warnings.warn(
            AutoshardWarning(
                f"plan of {plan.name}: {kept_apart[0].name}{more} is cut otherwise than rules by"
                " name can say, as one name is cut unlike in several arrays. The rules are those of"
                " most bytes; plan.in_shardings has all."
            ),
            stacklevel=3,
        )
    return tuple((name, _said(axes)) for name, axes in rules.items())


def boxes_of(plan: Plan) -> list[Box]:
    """Arguments with names for their dims.

    Raises:
        PlanError: There are none.
    """
    boxes = list(_boxes(plan.as_arguments(plan.arguments)))
    if not boxes:
        raise PlanError(
            f"plan of {plan.name}: no argument has names for its dims, as those of"
            " flax.linen.with_logical_partitioning or nnx.with_partitioning. Keep the boxes: pass"
            " what init gives, not nn.unbox of it."
        )
    return boxes


def variables_of(plan: Plan) -> list[tuple[tuple[Any, ...], bool, PlannedValue]]:
    """Variables of nnx among the arguments: path within its argument, if a parameter, and value."""

    def is_variable(node: Any) -> bool:
        return hasattr(node, "get_metadata")

    leaves = _tree.tree_leaves_with_path(plan.as_arguments(plan.arguments), is_leaf=is_variable)
    return [
        # Before the path within the module: positional or not, and which one it is.
        (tuple(key.key if hasattr(key, "key") else key for key in path[2:]), _is_parameter(one), v)
        for path, one in leaves
        if is_variable(one)
        for v in _tree.tree_leaves(one)
    ]


def _is_parameter(variable: Any) -> bool:
    """Is it an ``nnx.Param``, or of a class of these, as ``nnx.LoRAParam``?"""
    return any(one.__name__ == "Param" for one in type(variable).__mro__)


def _boxes(tree: Any) -> Iterator[Box]:
    """Arrays with names for their dims."""

    def is_box(node: Any) -> bool:
        return _names(node) is not None

    for node in _tree.tree_leaves(tree, is_leaf=is_box):
        names = _names(node)
        if names is None:
            continue
        for value in _tree.tree_leaves(node):
            if len(value.shape) == len(names):
                yield names, value


def _names(node: Any) -> tuple[str | None, ...] | None:
    """Names for the dims of a box of linen or a variable of nnx; None of anything else."""
    found: Any = None
    if hasattr(node, "unbox") and hasattr(node, "names"):
        found = node.names
    elif hasattr(node, "get_metadata"):
        metadata: Mapping[str, Any] = node.get_metadata()
        found = next((metadata[name] for name in _NNX_NAMES if metadata.get(name)), None)
    if not isinstance(found, tuple | list | jax.sharding.PartitionSpec):
        return None
    names = cast("Sequence[Any]", found)
    return tuple(name if isinstance(name, str) else None for name in names)


def planned_spec(value: PlannedValue) -> Spec:
    """How the plan cuts an argument."""
    return tuple(tuple(ref.name for ref in refs) for refs in value.sharding.dims)


def rules_of(boxes: Sequence[Box]) -> dict[str, Axes]:
    """For each name how most bytes are cut."""
    sizes: dict[str, dict[Axes, int]] = defaultdict(lambda: defaultdict(int))
    for names, value in boxes:
        for name, axes in zip(names, planned_spec(value), strict=True):
            if name is not None:
                sizes[name][axes] += prod(value.shape)
    return {name: max(cuts, key=lambda axes: cuts[axes]) for name, cuts in sizes.items()}


def cut_by_rules(names: Sequence[str | None], rules: Mapping[str, Axes]) -> Spec:
    """What flax makes of the rules: an axis cuts one dim, that of the first rule."""
    used: set[str] = set()
    found: list[Axes] = [() for _ in names]
    for name, axes in rules.items():
        if name in names and not used & set(axes):
            found[names.index(name)] = axes
            used |= set(axes)
    return tuple(found)


def _said(axes: Axes) -> str | Axes | None:
    return None if not axes else axes[0] if len(axes) == 1 else axes
