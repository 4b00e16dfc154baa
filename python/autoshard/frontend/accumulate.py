"""``autoshard.accumulate_gradients``: gradients of a large batch from small ones, one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp

from autoshard.errors import PlanError

_tree: Any = jax.tree_util


def accumulate_gradients(
    loss_fn: Callable[..., Any],
    steps: int,
    *,
    argnums: int | Sequence[int] = 0,
    batch_argnums: int | Sequence[int] | None = None,
    has_aux: bool = False,
    mean: bool = True,
    dtype: Any = None,
) -> Callable[..., Any]:
    """``jax.value_and_grad(loss_fn)`` over ``steps`` micro-batches in a ``lax.scan``.

    Only one micro-batch's activations live at a time. Micro-batch ``i`` holds the examples ``i``,
    ``i + steps``, ``i + 2 * steps``, ..: a batch whose dim 0 is split over devices stays where it
    is. How the buffers that add up the gradients are split, and where they are reduced, is a part
    of the plan.

    Args:
        loss_fn: As for ``jax.value_and_grad``. With ``mean`` its value is a mean over the batch.
        steps: Number of micro-batches; it divides dim 0 of every array of the batch.
        argnums: As in ``jax.value_and_grad``.
        batch_argnums: Positional arguments that hold the batch, in dim 0 of each array; None: all
            but ``argnums``.
        has_aux: As in ``jax.value_and_grad``; what it adds comes back with a new dim 0 of
            ``steps``.
        mean: Divide sums of losses and gradients by ``steps``.
        dtype: Of the buffers; None: as the gradients. The result has the gradients' dtype.

    Returns:
        A function of the arguments of ``loss_fn`` that gives what ``jax.value_and_grad`` gives.

    Raises:
        PlanError: ``steps`` is less than 1, or, when called, does not divide the batch.

    Example:
        ``loss, grads = autoshard.accumulate_gradients(loss_fn, 8)(params, batch)``
    """
    if steps < 1:
        raise PlanError(f"accumulate_gradients: steps={steps}. Give 1 or more.")
    differentiate: Any = jax.value_and_grad(loss_fn, argnums=argnums, has_aux=has_aux)
    trained = _numbers(argnums)

    def value_and_grad(*args: Any, **kwargs: Any) -> Any:
        first = {number % len(args) for number in trained}
        given = None if batch_argnums is None else _numbers(batch_argnums)
        batch = [n for n in range(len(args)) if (n not in first if given is None else n in given)]
        split = [_micro_batches(args[number], number, steps) for number in batch]

        def on_part(part: Sequence[Any]) -> Any:
            whole = list(args)
            for number, value in zip(batch, part, strict=True):
                whole[number] = value
            return differentiate(*whole, **kwargs)

        def add(sums: Any, part: Sequence[Any]) -> tuple[Any, Any]:
            value, gradients = on_part(part)
            loss, aux = value if has_aux else (value, None)
            return jax.tree.map(_plus, sums, (loss, gradients)), aux

        def zero(like: Any) -> Any:
            return jnp.zeros(like.shape, dtype or like.dtype)

        shapes: Any = jax.eval_shape(on_part, [jax.tree.map(_first, part) for part in split])
        made: Any = (shapes[0][0], shapes[1]) if has_aux else shapes
        zeros = jax.tree.map(zero, made)
        sums, aux = cast(Any, jax.lax.scan)(add, zeros, split)
        scale = 1 / steps if mean else 1

        def finish(total: Any, like: Any) -> Any:
            return (total * scale if mean else total).astype(like.dtype)

        loss, gradients = jax.tree.map(finish, sums, made)
        return ((loss, aux) if has_aux else loss), gradients

    return value_and_grad


def _first(array: Any) -> Any:
    return array[0]


def _plus(total: Any, value: Any) -> Any:
    return total + value.astype(total.dtype)


def _numbers(numbers: int | Sequence[int]) -> tuple[int, ...]:
    return (numbers,) if isinstance(numbers, int) else tuple(numbers)


def _micro_batches(argument: Any, number: int, steps: int) -> Any:
    """Each array with a new dim 0 of ``steps``: dim 0 is split with the micro-batch as minor part.

    So a dim 0 that is cut into blocks of examples is cut alike in every micro-batch.
    """

    def split(path: Any, array: Any) -> Any:
        shape = jnp.shape(array)
        if not shape or shape[0] % steps:
            raise PlanError(
                f"accumulate_gradients: argument {number}{_tree.keystr(path)} of shape {shape} is"
                f" not divided by {steps} steps in dim 0. Choose other steps, or say with"
                " batch_argnums which arguments hold the batch."
            )
        parts = jnp.reshape(array, (shape[0] // steps, steps, *shape[1:]))
        return jnp.moveaxis(parts, 1, 0)

    return _tree.tree_map_with_path(split, argument)
