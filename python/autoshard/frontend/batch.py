"""Data parallelism: which arguments hold the batch, and how all of them lie on the devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from autoshard.errors import PlanError
from autoshard.sharding import Mesh, Sharding

_tree: Any = jax.tree_util


def batch_pins(
    args_info: tuple[tuple[Any, ...], dict[str, Any]],
    names: Sequence[str],
    state: set[int],
    batch_argnums: int | Sequence[int] | None,
    mesh: Mesh,
    function: str,
) -> dict[int, Sharding]:
    """Dim 0 of the batch over all axes of ``mesh``, everything else on every device.

    PRNG keys get no pin.

    Args:
        args_info: Types of the arguments, positional ones and by name.
        names: Of the arrays among them.
        state: Arrays that a result replaces in the next call.
        batch_argnums: Positional arguments that hold the batch; None: the arrays outside
            ``state`` whose dim 0 can be split.
        mesh: Of the plan.
        function: Its name, for errors.

    Returns:
        Number of the array -> its sharding.

    Raises:
        PlanError: A dim 0 that cannot be split, or no array that is known to hold the batch.
    """
    leaves = _tree.tree_leaves(args_info)
    if batch_argnums is None:
        batch = _arrays_of_batch(leaves, state, mesh, function)
    else:
        batch = _arrays_of_arguments(args_info[0], batch_argnums, function)
        for number in batch:
            _check(leaves[number], names[number], mesh, function)
    return {
        number: _sharding(mesh, len(leaf.shape), number in batch)
        for number, leaf in enumerate(leaves)
        if not _is_key(leaf)
    }


def _sharding(mesh: Mesh, rank: int, is_batch: bool) -> Sharding:
    if not is_batch:
        return Sharding.fully_replicated(mesh, rank)
    return Sharding.named(mesh, mesh.axis_names, *[()] * (rank - 1))


def _arrays_of_batch(leaves: Sequence[Any], state: set[int], mesh: Mesh, function: str) -> set[int]:
    if not state:
        raise PlanError(
            f"{function}: no result replaces an argument, as a training step returns its"
            " parameters, so nothing tells the batch from the parameters. Say which arguments hold"
            " the batch: batch_argnums=1."
        )
    rest = [number for number in range(len(leaves)) if number not in state]
    batch = {number for number in rest if _can_be_split(leaves[number], mesh)}
    if not batch:
        shapes = ", ".join(str(tuple(leaves[number].shape)) for number in rest) or "none"
        raise PlanError(
            f"{function}: dim 0 of no argument but the state can be split over {mesh.size} devices;"
            f" their shapes: {shapes}. Use a batch size that {mesh.size} divides, or other devices."
        )
    return batch


def _arrays_of_arguments(
    positional: Sequence[Any], batch_argnums: int | Sequence[int], function: str
) -> set[int]:
    numbers = [batch_argnums] if isinstance(batch_argnums, int) else list(batch_argnums)
    found: set[int] = set()
    first = 0
    wanted = {
        number % len(positional)
        for number in numbers
        if -len(positional) <= number < len(positional)
    }
    if len(wanted) < len(set(numbers)):
        raise PlanError(
            f"{function}: batch_argnums={batch_argnums}, but there are {len(positional)} positional"
            " arguments (without static ones). Count from 0."
        )
    for number, argument in enumerate(positional):
        count = len(_tree.tree_leaves(argument))
        if number in wanted:
            found.update(range(first, first + count))
        first += count
    return found


def _check(leaf: Any, name: str, mesh: Mesh, function: str) -> None:
    if not _can_be_split(leaf, mesh):
        raise PlanError(
            f"{function}: {name} of shape {tuple(leaf.shape)} holds the batch, but {mesh.size}"
            f" devices do not divide its dim 0. Use a batch size that {mesh.size} divides, or leave"
            " the argument out of batch_argnums."
        )


def _can_be_split(leaf: Any, mesh: Mesh) -> bool:
    shape = leaf.shape
    return bool(shape) and shape[0] > 0 and shape[0] % mesh.size == 0 and not _is_key(leaf)


def _is_key(leaf: Any) -> bool:
    """A PRNG key: an array of them, or the two words of one."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        return True
    return tuple(leaf.shape) == (2,) and leaf.dtype == jnp.uint32
