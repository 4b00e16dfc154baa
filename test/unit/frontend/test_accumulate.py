"""``autoshard.accumulate_gradients`` against ``jax.value_and_grad`` of the whole batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard

Tree = Any

RANDOM = np.random.default_rng(2)
X = RANDOM.integers(-2, 3, (8, 4)).astype(np.float32)
Y = RANDOM.integers(-2, 3, (8, 2)).astype(np.float32)
W = {"w": RANDOM.integers(-2, 3, (4, 2)).astype(np.float32)}


def mean_loss(p: Tree, batch: Tree) -> Any:
    return jnp.mean(jnp.square(batch["x"] @ p["w"] - batch["y"]))


def sum_loss(p: Tree, x: Any, y: Any) -> Any:
    return jnp.sum(jnp.square(x @ p["w"] - y))


def assert_same(found: Tree, expected: Tree) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("steps", [1, 2, 8])
def test_means_are_those_of_the_batch(steps: int) -> None:
    batch = {"x": X, "y": Y}
    found = autoshard.accumulate_gradients(mean_loss, steps)(W, batch)
    assert_same(found, jax.value_and_grad(mean_loss)(W, batch))


def test_sums_are_those_of_the_batch() -> None:
    found = autoshard.accumulate_gradients(sum_loss, 4, mean=False)(W, X, Y)
    assert_same(found, jax.value_and_grad(sum_loss)(W, X, Y))


def test_several_arguments_are_differentiated() -> None:
    def loss(w: Any, b: Any, x: Any) -> Any:
        return jnp.sum(x @ w + b)

    args = (W["w"], jnp.ones(2), X)
    accumulate = autoshard.accumulate_gradients(loss, 2, argnums=(0, 1), mean=False)
    assert_same(accumulate(*args), jax.value_and_grad(loss, argnums=(0, 1))(*args))


def test_what_is_no_batch_is_passed_as_it_is() -> None:
    def loss(p: Tree, x: Any, scale: Any) -> Any:
        return jnp.sum(x @ p["w"]) * scale

    accumulate = autoshard.accumulate_gradients(loss, 2, batch_argnums=1, mean=False)
    args = (W, X, jnp.float32(3))
    assert_same(accumulate(*args), jax.value_and_grad(loss)(*args))


def test_aux_has_a_row_for_each_micro_batch() -> None:
    def loss(p: Tree, x: Any) -> Any:
        return jnp.sum(x @ p["w"]), x[0]

    (_, aux), _ = autoshard.accumulate_gradients(loss, 4, has_aux=True)(W, X)
    np.testing.assert_array_equal(aux, X[:4])


def test_buffers_in_another_dtype() -> None:
    """256 gradients of 1 are 256 in float32; in bfloat16 the sum stops there or rounds before."""
    p = jnp.zeros((), jnp.bfloat16)
    ones = jnp.ones((514, 1), jnp.bfloat16)

    def loss(p: Any, x: Any) -> Any:
        return jnp.sum(x * p)

    _, narrow = autoshard.accumulate_gradients(loss, 514, mean=False)(p, ones)
    _, wide = autoshard.accumulate_gradients(loss, 514, mean=False, dtype=jnp.float32)(p, ones)
    assert wide.dtype == jnp.bfloat16
    assert (float(narrow), float(wide)) == (256.0, 512.0)


def test_steps_that_do_not_divide_the_batch_are_an_error() -> None:
    accumulate = autoshard.accumulate_gradients(mean_loss, 3)
    with pytest.raises(
        autoshard.PlanError, match=r"argument 1\['x'\] of shape \(8, 4\) is not divided by 3 steps"
    ):
        accumulate(W, {"x": X, "y": Y})


@pytest.mark.parametrize("steps", [0, 2.0, True, "2"])
def test_no_steps_are_an_error(steps: Any) -> None:
    with pytest.raises(autoshard.PlanError, match=rf"steps={steps!r}\. Give 1 or more"):
        autoshard.accumulate_gradients(mean_loss, steps)


@pytest.mark.parametrize("number", [1, -2, np.int64(1), (np.int64(-2),)])
def test_the_batch_is_counted_from_either_end(number: Any) -> None:
    def loss(p: Tree, x: Any, scale: Any) -> Any:
        return jnp.sum(x @ p["w"]) * scale

    accumulate = autoshard.accumulate_gradients(loss, np.int64(2), batch_argnums=number, mean=False)
    args = (W, X, jnp.float32(3))
    assert_same(accumulate(*args), jax.value_and_grad(loss)(*args))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"argnums": (0, 1), "batch_argnums": 1}, "argument 1 is in argnums and in batch_argnums"),
        ({"argnums": -3, "batch_argnums": (0, 2)}, "argument 0 is in argnums and in batch_argnums"),
        ({"batch_argnums": 3}, "batch_argnums: there is no positional argument 3, the call has 3"),
        ({"batch_argnums": -4}, "batch_argnums: there is no positional argument -4"),
        ({"argnums": 3}, "argnums: there is no positional argument 3"),
        ({"argnums": (0, 1, 2)}, "no positional argument holds the batch"),
        ({"batch_argnums": ()}, "no positional argument holds the batch"),
    ],
)
def test_arguments_that_are_no_batch_are_an_error(options: Any, message: str) -> None:
    accumulate = autoshard.accumulate_gradients(sum_loss, 2, **options)
    with pytest.raises(autoshard.PlanError, match=message):
        accumulate(W, X, Y)


def test_a_batch_by_name_is_an_error() -> None:
    with pytest.raises(autoshard.PlanError, match="Pass it by position"):
        autoshard.accumulate_gradients(sum_loss, 2)(W, x=X, y=Y)


@pytest.mark.parametrize("number", ["x", 1.0, (1, "x")])
def test_what_is_no_number_of_an_argument_is_an_error(number: Any) -> None:
    with pytest.raises(autoshard.PlanError, match=r"batch_argnums=.* has not the numbers"):
        autoshard.accumulate_gradients(sum_loss, 2, batch_argnums=number)


def test_complex_gradients_keep_their_imaginary_parts() -> None:
    def loss(p: Tree, x: Any) -> Any:
        y = x @ p["w"]
        return jnp.sum(jnp.real(y * jnp.conj(y)))

    p = {"w": W["w"] + 1j * X[:4, :2]}
    found = autoshard.accumulate_gradients(loss, 2, mean=False, dtype=jnp.float32)(p, X)
    assert_same(found, jax.value_and_grad(loss)(p, X))
    assert np.abs(np.imag(found[1]["w"])).max() > 0


def test_buffers_of_integers_are_an_error() -> None:
    with pytest.raises(autoshard.PlanError, match="dtype=int32 cannot hold gradients"):
        autoshard.accumulate_gradients(mean_loss, 2, dtype=jnp.int32)
