"""``autoshard.accumulate_gradients``: gradients of a large batch from small ones, one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp

from autoshard.errors import PlanError
from autoshard.frontend.argnums import places, read_argnums, whole_number

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
        batch_argnums: Positional arguments that hold the batch, in dim 0 of each array; negative
            ones count from the end. None: all but ``argnums``. What is passed by name is no batch.
        has_aux: As in ``jax.value_and_grad``; what it adds comes back with a new dim 0 of
            ``steps``.
        mean: Divide sums of losses and gradients by ``steps``.
        dtype: Of the buffers, a floating one; complex gradients have complex buffers of at least
            this precision. None: as the gradients. The result has the gradients' dtype.

    Returns:
        A function of the arguments of ``loss_fn`` that gives what ``jax.value_and_grad`` gives.

    Raises:
        PlanError: ``steps`` is no number of 1 or more, or ``dtype`` cannot hold gradients. When
            called: ``steps`` does not divide the batch, or no argument holds one, or one that
            holds it is differentiated.

    Example:
        ``loss, grads = autoshard.accumulate_gradients(loss_fn, 8)(params, batch)``
    """
    count = whole_number(steps)
    if count is None or count < 1:
        raise PlanError(f"accumulate_gradients: steps={steps!r}. Give 1 or more.")
    if dtype is not None and not jnp.issubdtype(dtype, jnp.inexact):
        raise PlanError(
            f"accumulate_gradients: dtype={jnp.dtype(dtype)} cannot hold gradients. Give a floating"
            " one, jnp.float32."
        )
    differentiate: Any = jax.value_and_grad(loss_fn, argnums=argnums, has_aux=has_aux)
    trained = read_argnums(argnums, "accumulate_gradients: argnums")
    given = None
    if batch_argnums is not None:
        given = read_argnums(batch_argnums, "accumulate_gradients: batch_argnums")

    def value_and_grad(*args: Any, **kwargs: Any) -> Any:
        batch = _batch(len(args), trained, given)
        split = [_micro_batches(args[number], number, count) for number in batch]
        if not jax.tree.leaves(split):
            raise PlanError(
                "accumulate_gradients: no positional argument holds the batch. Pass it by position,"
                " not by name, and outside of argnums."
            )

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
            return jnp.zeros(like.shape, _buffer_dtype(dtype, like.dtype))

        shapes: Any = jax.eval_shape(on_part, [jax.tree.map(_first, part) for part in split])
        made: Any = (shapes[0][0], shapes[1]) if has_aux else shapes
        zeros = jax.tree.map(zero, made)
        sums, aux = cast(Any, jax.lax.scan)(add, zeros, split)
        scale = 1 / count if mean else 1

        def finish(total: Any, like: Any) -> Any:
            return (total * scale if mean else total).astype(like.dtype)

        loss, gradients = jax.tree.map(finish, sums, made)
        return ((loss, aux) if has_aux else loss), gradients

    return value_and_grad


def _batch(count: int, trained: Sequence[int], given: Sequence[int] | None) -> list[int]:
    """Which of ``count`` positional arguments hold the batch."""
    first = places(trained, count, "accumulate_gradients: argnums")
    if given is None:
        return [number for number in range(count) if number not in first]
    batch = sorted(places(given, count, "accumulate_gradients: batch_argnums"))
    both = [number for number in batch if number in first]
    if both:
        raise PlanError(
            f"accumulate_gradients: argument {both[0]} is in argnums and in batch_argnums. Each"
            " micro-batch has other examples, so that gradients by the batch cannot be added up."
            " Leave it out of one of them."
        )
    return batch


def _buffer_dtype(wanted: Any, found: Any) -> Any:
    if wanted is None:
        return found
    is_complex = jnp.issubdtype(found, jnp.complexfloating)
    return jnp.promote_types(wanted, jnp.complex64) if is_complex else wanted


def _first(array: Any) -> Any:
    return array[0]


def _plus(total: Any, value: Any) -> Any:
    return total + value.astype(total.dtype)


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
