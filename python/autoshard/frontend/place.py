"""Arguments where a plan wants them, and arguments that are for another plan."""

from __future__ import annotations

from typing import Any, cast

import jax
import numpy as np

from autoshard.errors import PlanError
from autoshard.frontend.plan import Plan
from autoshard.pipeline.transfers import without_parts

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
    numbers: list[int] = []
    for number, (leaf, value) in enumerate(zip(leaves, plan.arguments, strict=True)):
        if not isinstance(leaf, jax.Array | np.ndarray):
            continue
        array = cast(Any, leaf)
        dtype = array.dtype
        if isinstance(leaf, np.ndarray):  # JAX takes 64 bits as 32 where they are not enabled
            dtype = jax.dtypes.canonicalize_dtype(dtype)
        have = f"{dtype}{list(array.shape)}"
        if have != f"{value.dtype}{list(value.shape)}":
            raise PlanError(
                f"plan of {plan.name}: {value.name} is {value.dtype}{list(value.shape)} in it, but"
                f" {have} here. Plan again for these arguments."
            )
        if value.is_used:
            numbers.append(number)
    shardings = plan.named_shardings[0]
    if jax.process_count() > 1:
        put: Any = [moved(leaves[n], shardings[n], plan, n) for n in numbers]
    else:
        put = jax.device_put([leaves[n] for n in numbers], [shardings[n] for n in numbers])
    for number, leaf in zip(numbers, put, strict=True):
        leaves[number] = leaf
    return _tree.tree_unflatten(tree, leaves)


def moved(leaf: Any, sharding: Any, plan: Plan, number: int, *, donated: bool = False) -> jax.Array:
    """An argument where a plan wants it.

    Several processes give the same value where it is on no device in particular. What is on devices
    of theirs stays there: it is taken where each device of the plan has its part already.

    Args:
        leaf: An array of JAX or NumPy.
        sharding: Where it goes.
        plan: Has the names.
        number: Of the argument.
        donated: May its memory be taken?

    Raises:
        PlanError: It lies on other devices than those that the plan wants it on, and there are
            several processes.
    """
    is_anywhere = not isinstance(leaf, jax.Array) or not leaf.committed
    if jax.process_count() == 1 or is_anywhere:
        return jax.device_put(leaf, sharding, donate=donated)
    if leaf.sharding.device_set == sharding.device_set:
        if not leaf.addressable_shards:
            return without_parts(leaf.shape, leaf.dtype, sharding)
        return jax.device_put(leaf, sharding, donate=donated)
    shape, has = leaf.shape, cast(Any, leaf.sharding)
    have, want = (dict[Any, Any](it.devices_indices_map(shape)) for it in (has, sharding))
    if any(have.get(device) != index for device, index in want.items()):
        raise PlanError(
            f"{plan.name}: {plan.arguments[number].name} lies as {leaf.sharding} says, and the plan"
            f" wants it on other devices, {sharding}: of several processes only the step itself"
            " sends arrays. Give all of them the same NumPy array, or make it there:"
            " jax.device_put(array, plan.in_shardings[..]) of that."
        )
    parts = {shard.device: shard.data for shard in leaf.addressable_shards}
    return jax.make_array_from_single_device_arrays(
        shape, sharding, [parts[it] for it in want if it in parts], dtype=leaf.dtype
    )
