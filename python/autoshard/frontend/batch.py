"""The batch: its size, which arguments hold it, and how all of them lie on the devices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from autoshard.errors import PlanError
from autoshard.planned.summary import BatchSplit
from autoshard.sharding import Mesh, Sharding
from autoshard.sharding.padding import padded_size

_tree: Any = jax.tree_util


def batch_pins(
    args_info: tuple[tuple[Any, ...], dict[str, Any]],
    names: Sequence[str],
    state: set[int],
    batch_argnums: int | Sequence[int] | None,
    mesh: Mesh,
    function: str,
    may_pad: bool,
) -> dict[int, Sharding]:
    """Dim 0 of the batch over all axes of ``mesh``, everything else on every device.

    PRNG keys get no pin.

    Args:
        args_info: Types of the arguments, positional ones and by name.
        names: Of the arrays among them.
        state: Arrays that a result replaces in the next call.
        batch_argnums: Positional arguments that hold the batch, numbers and PRNG keys beside it;
            None: the arrays outside ``state`` whose dim 0 can be split.
        mesh: Of the plan.
        function: Its name, for errors.
        may_pad: Dim 0 of the batch need not fall into equal parts.

    Returns:
        Number of the array -> its sharding; where that has uneven parts, it is for what reads it.

    Raises:
        PlanError: A dim 0 that cannot be split, or no array that is known to hold the batch.
    """
    leaves = _tree.tree_leaves(args_info)
    if batch_argnums is None:
        batch = _arrays_of_batch(leaves, state, mesh, function, may_pad)
    else:
        named = _arrays_of_arguments(args_info[0], batch_argnums, function)
        batch = {n for n in named if leaves[n].shape and not _is_key(leaves[n])} or named
        for number in batch:
            _check(leaves[number], names[number], mesh, function, may_pad)
    return {
        number: _sharding(mesh, leaf.shape, number in batch)
        for number, leaf in enumerate(leaves)
        if not _is_key(leaf)
    }


def _sharding(mesh: Mesh, shape: Sequence[int], is_batch: bool) -> Sharding:
    if not is_batch or shape[0] == 0:  # a batch without examples has nothing to split
        return Sharding.fully_replicated(mesh, len(shape))
    return Sharding.named(mesh, mesh.axis_names, *[()] * (len(shape) - 1))


def _arrays_of_batch(
    leaves: Sequence[Any], state: set[int], mesh: Mesh, function: str, may_pad: bool
) -> set[int]:
    if not state:
        raise PlanError(
            f"{function}: no result replaces an argument, as a training step returns its"
            " parameters, so nothing tells the batch from the parameters. Say which arguments hold"
            " the batch: batch_argnums=1."
        )
    rest = [number for number in range(len(leaves)) if number not in state]
    batch = {number for number in rest if _can_be_split(leaves[number], mesh, may_pad)}
    if not batch:
        shapes = ", ".join(str(tuple(leaves[number].shape)) for number in rest) or "none"
        raise PlanError(
            f"{function}: dim 0 of no argument but the state can be split over {mesh.size} devices;"
            f" their shapes: {shapes}. Use a batch size that {mesh.size} divides, other devices, or"
            " indivisible='pad'."
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


def _check(leaf: Any, name: str, mesh: Mesh, function: str, may_pad: bool) -> None:
    if not leaf.shape or _is_key(leaf):
        what = "a PRNG key" if _is_key(leaf) else "a scalar"
        raise PlanError(
            f"{function}: {name} holds the batch, but it is {what}, which has no examples to split."
            " Leave the argument out of batch_argnums."
        )
    is_empty = leaf.shape[0] == 0
    if not is_empty and not _can_be_split(leaf, mesh, may_pad):
        raise PlanError(
            f"{function}: {name} of shape {tuple(leaf.shape)} holds the batch, but {mesh.size}"
            f" devices do not divide its dim 0. Use a batch size that {mesh.size} divides, leave"
            " the argument out of batch_argnums, or give indivisible='pad'."
        )


def _can_be_split(leaf: Any, mesh: Mesh, may_pad: bool) -> bool:
    shape = leaf.shape
    if not shape or shape[0] == 0 or _is_key(leaf):
        return False
    size = padded_size(shape[0], mesh.size) if may_pad else shape[0]
    return size % mesh.size == 0


def _is_key(leaf: Any) -> bool:
    """A PRNG key: an array of them, or the two words of one."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        return True
    return tuple(leaf.shape) == (2,) and leaf.dtype == jnp.uint32


def global_batch_size(
    batch_size: int,
    *,
    pipeline: bool = False,
    full_batch: bool = False,
    device_num: int | None = None,
    data_parallel: int | None = None,
    micro_batch_interleave_num: int = 1,
    gradient_accumulation_steps: int = 1,
    micro_batch_num: int = 1,
) -> int:
    """Examples of one step on all devices together, as MindSpore's automatic mode counts them.

        batch_size * pieces * micro_batch_interleave_num * rounds

    ``pieces`` is ``data_parallel`` with a full batch, where every device is given the whole batch
    and takes its piece of it, else ``device_num``: every device is given examples of its own.
    ``rounds`` is ``micro_batch_num`` with a pipeline, else ``gradient_accumulation_steps``.

    Args:
        batch_size: Of the configuration: examples of one piece in one round.
        pipeline: The program runs in pipeline stages.
        full_batch: Every device is given the whole batch.
        device_num: Devices; needed, and counted, without a full batch only.
        data_parallel: Pieces of the batch; needed, and counted, with a full batch only.
        micro_batch_interleave_num: Parts of a piece whose compute and communication overlap.
        gradient_accumulation_steps: Rounds whose gradients are added; not with a pipeline.
        micro_batch_num: Micro-batches in flight; with a pipeline only.

    Raises:
        PlanError: A number below 1, one that is missing, or one that this kind does not count.

    Example:
        ``global_batch_size(2, full_batch=True, data_parallel=4, gradient_accumulation_steps=3)``
        is 24.

    Source:
        The table "Global batch size formula" of mindformers' guide to automatic parallelism.
    """
    pieces_name, pieces = (
        ("data_parallel", data_parallel) if full_batch else ("device_num", device_num)
    )
    if pieces is None:
        raise PlanError(
            f"global_batch_size: with full_batch={full_batch} the batch size is multiplied by"
            f" {pieces_name}, which is not given. Give {pieces_name}=8 or the like."
        )
    rounds_name, rounds = (
        ("micro_batch_num", micro_batch_num)
        if pipeline
        else ("gradient_accumulation_steps", gradient_accumulation_steps)
    )
    other_name, other = (
        ("gradient_accumulation_steps", gradient_accumulation_steps)
        if pipeline
        else ("micro_batch_num", micro_batch_num)
    )
    if other != 1:
        raise PlanError(
            f"global_batch_size: {other_name}={other} counts only with pipeline={not pipeline};"
            f" with pipeline={pipeline} the rounds are {rounds_name}. Leave {other_name} out, or"
            f" give pipeline={not pipeline}."
        )
    factors = {
        "batch_size": batch_size,
        pieces_name: pieces,
        "micro_batch_interleave_num": micro_batch_interleave_num,
        rounds_name: rounds,
    }
    for name, factor in factors.items():
        if factor < 1:
            raise PlanError(f"global_batch_size: {name}={factor}. Give 1 or more.")
    return math.prod(factors.values())


def batch_arguments(
    leaves: Sequence[Any],
    positional: Sequence[Any],
    state: set[int],
    batch_argnums: int | Sequence[int] | None,
    function: str,
) -> list[int]:
    """Arrays that hold the batch in dim 0; none where the program does not tell.

    Args:
        leaves: Types of all arrays among the arguments.
        positional: Types of the positional arguments, as trees.
        state: Arrays that a result replaces in the next call.
        batch_argnums: Positional arguments that hold it, if the user says so.
        function: Its name, for errors.
    """
    if batch_argnums is not None:
        numbers = _arrays_of_arguments(positional, batch_argnums, function)
    else:
        numbers = set(range(len(leaves))) - state if state else set[int]()
    return sorted(n for n in numbers if leaves[n].shape and not _is_key(leaves[n]))


def batch_split(rows: Sequence[int], cuts: Sequence[int], steps: int) -> BatchSplit | None:
    """How a plan splits a batch; None where the arrays that hold it are of different lengths.

    Args:
        rows: Dim 0 of each array that holds the batch.
        cuts: Into how many pieces the plan cuts it.
        steps: Rounds of gradient accumulation.
    """
    if not rows or len(set(rows)) > 1:
        return None
    pieces = min(cuts)
    if rows[0] % (pieces * steps):
        return None
    return BatchSplit(rows[0], pieces, rows[0] // pieces // steps, steps)
