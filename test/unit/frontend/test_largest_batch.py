"""``autoshard.largest_batch``: sizes that are tried, what is taken, and what is refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.errors import TracingError

WIDTH = 64
P = jax.sharding.PartitionSpec


def type_of(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def step(params: Any, batch: Any) -> Any:
    def loss(params: Any) -> jax.Array:
        hidden = jnp.tanh(batch["x"] @ params["up"])
        return jnp.mean((hidden @ params["down"] - batch["y"]) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(updated, params, gradients), value


def updated(parameter: jax.Array, gradient: jax.Array) -> jax.Array:
    return parameter - 0.1 * gradient


PARAMS = {"up": type_of(WIDTH, 4 * WIDTH), "down": type_of(4 * WIDTH, WIDTH)}


def batch(rows: int) -> dict[str, jax.ShapeDtypeStruct]:
    return {"x": type_of(rows, WIDTH), "y": type_of(rows, WIDTH)}


def largest(rows: int, fn: Any = step, **options: Any) -> Any:
    given: dict[str, Any] = {
        "cluster": "h100:4",
        "donate_argnums": 0,
        "memory_limit": "1MiB",
    } | options
    return autoshard.largest_batch(fn, PARAMS, batch(rows), **given)


def fits(rows: int, **options: Any) -> bool:
    given: dict[str, Any] = {
        "cluster": "h100:4",
        "donate_argnums": 0,
        "memory_limit": "1MiB",
    } | options
    try:
        autoshard.plan(step, PARAMS, batch(rows), **given)
    except autoshard.DoesNotFitError:
        return False
    return True


@pytest.mark.parametrize("rows", [16, 1 << 14])
def test_no_larger_batch_fits_wherever_it_begins(rows: int) -> None:
    found = largest(rows, multiple_of=8)
    assert found.multiple_of == 8
    assert found.size % 8 == 0
    assert fits(found.size)
    assert not fits(found.size + 8)
    assert found.plan.batch.size == found.size
    assert found.plan.arguments[-1].shape[0] == found.size
    assert found.plan.peak_bytes <= 2**20


def test_sizes_are_multiples_of_what_the_plan_cuts_the_batch_into() -> None:
    found = largest(64, mode="data_parallel")
    assert found.multiple_of == 4
    in_rounds = largest(64, mode="data_parallel", micro_batches=2)
    assert in_rounds.multiple_of == 8
    assert in_rounds.size > found.size


def test_the_best_batch_has_the_fewest_seconds_an_example() -> None:
    found = largest(32)
    each = {one.batch: one.seconds_per_example for one in found.tried if one.fits}
    assert each[found.best_size] == min(each.values())
    assert found.best.step_seconds / found.best_size == each[found.best_size]
    assert [one.batch for one in found.tried] == sorted(one.batch for one in found.tried)
    assert max(each) == found.size
    out = [one for one in found.tried if not one.fits]
    assert all(one.batch > found.size and one.peak_bytes > 2**20 for one in out)
    text = str(found)
    assert "fewest seconds an example" in text
    assert "largest" in text
    assert "does not fit" in text
    assert repr(found).startswith("<largest batch of step: ")


def test_micro_batches_are_chosen_for_each_size() -> None:
    found = largest(64, micro_batches="auto", at_most=4096, memory_limit="800KiB")
    counts = [one.micro_batches for one in found.tried if one.fits]
    assert counts[0] == 1
    assert counts[-1] > 1
    assert found.size == 4096


def test_nothing_above_the_most_is_tried() -> None:
    found = largest(64, at_most=100)
    assert [one.batch for one in found.tried] == [64, 100]
    assert found.size == 100


def test_a_plan_is_of_its_own_size() -> None:
    found = largest(16, at_most=64)
    assert found.plan.origin.traced.leaves[-1].shape[0] == 64
    again = autoshard.plan(
        step, PARAMS, batch(64), cluster="h100:4", donate_argnums=0, memory_limit="1MiB"
    )
    assert found.plan.step_seconds == again.step_seconds


def test_not_even_one_example_fits() -> None:
    with pytest.raises(autoshard.DoesNotFitError, match="step: not even a batch of 1 fits: no"):
        largest(8, memory_limit="16KiB")


def test_a_size_that_is_written_in_the_function_is_named() -> None:
    def fixed(params: Any, batch: Any) -> Any:
        x = batch["x"].reshape(4, 8, WIDTH).reshape(32, WIDTH)
        return step(params, {"x": x, "y": batch["y"]})

    with pytest.raises(TracingError) as raised:
        largest(32, fixed)
    said = str(raised.value)
    assert "test_largest_batch.py:" in said
    assert "fixed: with a batch of 64 in place of 32 it cannot be traced: TypeError" in said
    assert "x.shape[0]" in said


def test_a_size_that_pins_do_not_divide_is_a_row() -> None:
    found = largest(32, mesh="a=4", in_shardings=(None, P("a")), multiple_of=2, memory_limit="1MiB")
    refused = [one for one in found.tried if one.reason not in ("", "does not fit")]
    assert all(one.batch % 4 for one in refused)
    assert found.size % 4 == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"magic": 1}, "largest_batch: .*'magic'. Options are those of autoshard.plan"),
        ({"multiple_of": 0}, "multiple_of=0. Give 1 or more"),
        ({"at_most": 4, "multiple_of": 8}, "no multiple of 8 is at most 4 examples"),
        ({"cluster": None, "mesh": "a=2", "memory_limit": None}, "needs a cluster"),
        ({"pipeline": autoshard.Pipeline(stages=2, micro_batches=2)}, "pipeline= is not"),
        ({"batch_argnums": (0, 1)}, "they have .64, 256. rows|they have .32, 64, 256. rows"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(autoshard.PlanError, match=said):
        largest(32, **options)


def test_a_batch_that_nobody_knows_is_refused() -> None:
    def forward(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(x @ w)

    with pytest.raises(autoshard.PlanError, match=r"none are known.*batch_argnums=1"):
        autoshard.largest_batch(forward, type_of(8, 8), type_of(8, 8), cluster="h100:4")
