"""``autoshard.manual_split``: what is computed, what is held where, and what is sent."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from equivalence import assert_equal, shardy, unsharded

import autoshard
from autoshard.planned.collective import CollectiveKind, total_bytes

SPLIT = (10, 20, 30, 4)
STRATEGY = ((4, 2), (1, 1, 4))
MESH = "tp=4,mp=2"

take = partial(jnp.take, axis=0)


def table_of(*columns: int) -> np.ndarray:
    return np.random.default_rng(3).integers(-3, 4, (sum(SPLIT), *columns)).astype(np.float32)


def indices_of(*shape: int, columns: int = 1) -> np.ndarray:
    """Each part of the last dim reads its sub-table."""
    random, first, parts = np.random.default_rng(4), 0, []
    for rows in SPLIT:
        parts.append(first + random.integers(0, rows, (*shape, columns)))
        first += rows
    return np.concatenate(parts, -1).astype(np.int32)


@pytest.mark.parametrize("active", [True, False], ids=["shardy", "gspmd"])
@pytest.mark.parametrize(
    ("columns", "strategy", "mesh", "result"),
    [
        ((64,), ((4, 2), (1, 1, 4)), "tp=4,mp=2", "[{}, {}, {tp}, {mp}]"),
        ((4, 4), ((4, 2, 1), (1, 1, 4)), "tp=4,mp=2", "[{}, {}, {tp}, {mp}, {}]"),
        ((8,), ((4, 1), (2, 1, 4)), "dp=2,tp=4", "[{dp}, {}, {tp}, {}]"),
        ((8,), None, "tp=4", "[{}, {}, {tp}, {}]"),
    ],
    ids=["rows and columns", "rank 3", "batch too", "rows"],
)
def test_columns_are_looked_up_where_their_sub_table_is(
    columns: tuple[int, ...], strategy: Any, mesh: str, result: str, active: bool
) -> None:
    look_up = autoshard.manual_split(take, SPLIT, strategy)
    table, indices = table_of(*columns), indices_of(4, 6, columns=3)
    packed = look_up.pack(table)
    with shardy(active):
        step = autoshard.jit(look_up, mesh=mesh)
        plan = step.plan(packed, indices)
        assert str(plan.results[0].sharding) == result
        assert plan.arguments[0].local_shape[0] == max(SPLIT)
        assert plan.collectives == ()
        np.testing.assert_array_equal(step(packed, indices), table[indices])
        assert "all-" not in (step.lower(packed, indices).compile().as_text() or "")


def test_layouts_say_the_same_as_cuts() -> None:
    layout = autoshard.Layout((4, 2), ("tp", "mp"))
    look_up = autoshard.manual_split(
        take, SPLIT, (layout("tp", "mp"), layout("None", "None", "tp"))
    )
    table, indices = table_of(8), indices_of(2, 2)
    step = autoshard.jit(look_up)
    found = step.plan(look_up.pack(table), indices)
    assert str(found.results[0].sharding) == "[{}, {}, {tp}, {mp}]"
    assert found.collectives == ()
    np.testing.assert_array_equal(step(look_up.pack(table), indices), table[indices])


def test_packing_is_undone_and_pads_to_the_longest_part_only() -> None:
    look_up = autoshard.manual_split(take, SPLIT)
    table = table_of(8)
    packed = look_up.pack(table)
    assert isinstance(packed, np.ndarray)
    assert (look_up.rows, look_up.packed_rows, packed.shape) == (64, 120, (120, 8))
    assert np.count_nonzero(packed) == np.count_nonzero(table)
    np.testing.assert_array_equal(look_up.unpack(packed), table)
    np.testing.assert_array_equal(look_up.unpack(look_up.pack(jnp.asarray(table))), table)
    even = autoshard.manual_split(take, (16, 16, 16, 16))
    np.testing.assert_array_equal(even.pack(table), table)


def test_a_table_that_is_not_packed_is_packed_in_the_step() -> None:
    look_up = autoshard.manual_split(take, SPLIT)
    table, indices = table_of(8), indices_of(16)
    np.testing.assert_array_equal(look_up(table, indices), table[indices])
    with_move = autoshard.plan(look_up, table, indices, mesh=MESH)
    assert str(with_move.arguments[0].shape) == "(64, 8)"
    np.testing.assert_array_equal(autoshard.jit(look_up, mesh=MESH)(table, indices), table[indices])


def test_rows_of_another_sub_table_are_not_looked_up() -> None:
    look_up = autoshard.manual_split(take, SPLIT)
    indices = np.array([[0, 10, 30, 60], [10, 9, 29, 64], [-1, 29, 59, 63]], np.int32)
    found = np.asarray(look_up(look_up.pack(table_of(2)), indices))
    assert np.isnan(found).all(-1).tolist() == [
        [False] * 4,
        [True] * 4,
        [True, False, False, False],
    ]
    integers = look_up(look_up.pack(table_of(2).astype(np.int32)), indices)
    assert integers[1, 0, 0] == np.iinfo(np.int32).min


def step_of(look_up: Any, optimizer: Any) -> Any:
    def loss(params: Any, indices: Any, labels: Any) -> Any:
        vectors = look_up(params["table"], indices)
        logits = vectors.reshape(len(indices), -1) @ params["w"]
        return jnp.mean((logits[:, 0] - labels) ** 2)

    def step(params: Any, state: Any, indices: Any, labels: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, indices, labels)
        updates, state = optimizer.update(gradients, state, params)
        return value, optax.apply_updates(params, updates), state

    return step


@pytest.mark.parametrize("active", [True, False], ids=["shardy", "gspmd"])
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_training_equals_that_of_the_whole_table(name: str, active: bool) -> None:
    optimizer = {"sgd": optax.sgd(0.25), "adamw": optax.adamw(0.1, weight_decay=0.1)}[name]
    look_up = autoshard.manual_split(take, SPLIT)
    table, indices = table_of(8), indices_of(16, columns=2)
    params = {"table": table, "w": np.ones((64, 1), np.float32)}
    labels = np.arange(16, dtype=np.float32)
    expected = params, optimizer.init(params)
    found = params | {"table": look_up.pack(table)}, None
    found = found[0], optimizer.init(found[0])
    with shardy(active):
        step = autoshard.jit(step_of(look_up, optimizer), mesh=MESH)
        for _ in range(3):
            value, *found = step(*found, indices, labels)
            wanted, *expected = unsharded(step_of(take, optimizer), (*expected, indices, labels))
            np.testing.assert_allclose(value, wanted, rtol=1e-5)
        plan = step.plan(*found, indices, labels)
    for argument in plan.arguments:
        if argument.shape == (120, 8):  # the moments of the optimizer, too
            assert str(argument.sharding) in ("[{tp}, {}]", "[{tp}, {mp}]")
    packed = np.asarray(found[0]["table"])
    assert_equal(look_up.unpack(packed), expected[0]["table"], 1e-5)
    assert np.count_nonzero(look_up.pack(look_up.unpack(packed)) - packed) == 0  # zeros stayed


def test_the_uneven_split_sends_less_than_the_even_one() -> None:
    table, indices = table_of(64), indices_of(6, 8)
    even = autoshard.shard(take, in_strategy=((4, 2), (1, 1, 1)))
    look_up = autoshard.manual_split(take, SPLIT, STRATEGY)
    sends = autoshard.plan(even, table, indices, mesh=MESH).collectives
    # 6 x 8 x 4 vectors of 32 floats on each device, summed over the four that have rows
    assert {one.kind for one in sends} <= {CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER}
    assert total_bytes(sends) >= 3 / 4 * 6 * 8 * 4 * 32 * 4
    assert autoshard.plan(look_up, look_up.pack(table), indices, mesh=MESH).collectives == ()


def test_the_automatic_mode_keeps_the_split() -> None:
    look_up = autoshard.manual_split(take, SPLIT)
    plan = autoshard.plan(look_up, look_up.pack(table_of(8)), indices_of(16), cluster="cpu:4")
    assert plan.arguments[0].local_shape == (30, 8)
    assert plan.arguments[1].local_shape == (16, 1)


def test_numbers_of_numpy_are_numbers() -> None:
    strategy = tuple(tuple(np.array(cuts)) for cuts in STRATEGY)
    look_up = autoshard.manual_split(take, np.array(SPLIT), strategy)
    assert look_up.split == SPLIT
    table, indices = table_of(8), indices_of(4, 6)
    np.testing.assert_array_equal(look_up(table, indices), table[indices])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.uint32])
@pytest.mark.parametrize("split", [(256,), (200, 100)])
def test_narrow_indices_need_not_hold_the_rows_of_the_table(split: Any, dtype: Any) -> None:
    table = np.arange(sum(split), dtype=np.float32)[:, None]
    indices = np.full((1, len(split)), 5, dtype)  # no row of a second sub-table
    found = autoshard.manual_split(take, split)(table, indices)[..., 0]
    np.testing.assert_array_equal(found, [[5.0, np.nan][: len(split)]])


@pytest.mark.parametrize(
    ("split", "strategy", "message"),
    [
        ((), None, "split is \\(\\)"),
        ((10, 0), None, "one number of 1 or more for each"),
        ((10, 54), ((4, 1), (1, 2)), "cuts dim 0 of the table in 4"),
        ((10, 54), ((2, 1), (2, 1)), "cuts the last dim of the indices in 1"),
        ((10, 54), ((2, 1),), "a strategy of the table and one of the indices"),
    ],
)
def test_a_split_that_cannot_be_is_refused(split: Any, strategy: Any, message: str) -> None:
    with pytest.raises(autoshard.StrategyError, match=message) as raised:
        autoshard.manual_split(take, split, strategy)
    assert __file__ in str(raised.value)


@pytest.mark.parametrize(
    ("table", "indices", "strategy", "message"),
    [
        ((63, 8), (16, 4), None, "split \\(10, 20, 30, 4\\) is for 64 rows, 120 when packed"),
        ((64, 8), (16, 6), None, "must fall into 4 equal parts"),
        ((64, 8), (16, 20), None, "read by 5 columns, and must have as many rows"),
        ((64, 8), (16, 4), ((4, 2), (1, 1, 4)), "has rank 2. Give one entry for each dim"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    table: Any, indices: Any, strategy: Any, message: str
) -> None:
    look_up = autoshard.manual_split(take, SPLIT, strategy)
    with pytest.raises(autoshard.StrategyError, match=message):
        look_up(np.zeros(table, np.float32), np.zeros(indices, np.int32))


def test_only_rows_can_be_looked_up() -> None:
    look_up = autoshard.manual_split(partial(jnp.take, axis=1), SPLIT)
    with pytest.raises(autoshard.StrategyError, match="only dim 0 of a table"):
        look_up(look_up.pack(table_of(8)), indices_of(16))
