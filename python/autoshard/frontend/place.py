"""Arguments where a plan wants them, and arguments that are for another plan."""

from __future__ import annotations

from typing import Any, cast

import jax
import numpy as np

from autoshard.errors import PlanError
from autoshard.frontend.plan import Plan

_tree: Any = jax.tree_util


def placed(plan: Plan, arguments: Any) -> Any:
    """See ``Plan.place``.

    Args:
        plan: Its devices are here.
        arguments: ``(positional, by name)``.
    """
    leaves, tree = _tree.tree_flatten(arguments)
    if len(leaves) != len(plan.arguments):
        raise PlanError(
            f"plan of {plan.name}: it is for {len(plan.arguments)} arrays, here are {len(leaves)}."
            " Give all arguments but static ones, as in a call."
        )
    moved: list[int] = []
    for number, (leaf, value) in enumerate(zip(leaves, plan.arguments, strict=True)):
        if not isinstance(leaf, jax.Array | np.ndarray):
            continue
        array = cast(Any, leaf)
        have = f"{array.dtype}{list(array.shape)}"
        if have != f"{value.dtype}{list(value.shape)}":
            raise PlanError(
                f"plan of {plan.name}: {value.name} is {value.dtype}{list(value.shape)} in it, but"
                f" {have} here. Plan again for these arguments."
            )
        if value.is_used:
            moved.append(number)
    shardings = plan.named_shardings[0]
    put: Any = jax.device_put([leaves[n] for n in moved], [shardings[n] for n in moved])
    for number, leaf in zip(moved, put, strict=True):
        leaves[number] = leaf
    return _tree.tree_unflatten(tree, leaves)
