"""Sharded equals unsharded: forward, backward and optimizer step, with both partitioners."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from equivalence import (
    assert_equal,
    data_parallel,
    on_one_device,
    problem,
    searched,
    sharded,
    shardy,
    unsharded,
)
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from models import INTEGERS, MODELS, REALS, Arithmetic, Model, unmarked

import autoshard

by_name = {"ids": lambda value: getattr(value, "name", None)}
every_model = pytest.mark.parametrize("model", MODELS, **by_name)
stages_and_partitioners = pytest.mark.parametrize(
    ("stage", "arithmetic", "use_shardy"),
    [
        ("forward", INTEGERS, True),
        ("train_step", INTEGERS, True),  # integers are exact, so say more
        ("train_step", INTEGERS, False),
        ("train_step", REALS, True),
    ],
    ids=["forward", "integers-shardy", "integers-gspmd", "reals-shardy"],
)
both_partitioners = pytest.mark.parametrize("use_shardy", [True, False], ids=("shardy", "gspmd"))


@every_model
@stages_and_partitioners
def test_sharded_run_equals_unsharded_run(
    model: Model, stage: str, arithmetic: Arithmetic, use_shardy: bool
) -> None:
    expected = on_one_device(model, arithmetic, stage)
    with shardy(use_shardy):
        found = sharded(*problem(model, arithmetic, stage, autoshard.shard))
    assert_equal(found, expected, arithmetic.tolerance)


@every_model
@stages_and_partitioners
def test_searched_run_equals_unsharded_run(
    model: Model, stage: str, arithmetic: Arithmetic, use_shardy: bool
) -> None:
    expected = on_one_device(model, arithmetic, stage)
    with shardy(use_shardy):
        found = searched(*problem(model, arithmetic, stage, unmarked))
    assert_equal(found, expected, arithmetic.tolerance)


@every_model
@both_partitioners
def test_search_keeps_marks_and_equals_unsharded_run(model: Model, use_shardy: bool) -> None:
    expected = on_one_device(model, INTEGERS, "train_step")
    with shardy(use_shardy):
        found = searched(*problem(model, INTEGERS, "train_step", autoshard.shard))
    assert_equal(found, expected, 0.0)


@every_model
@both_partitioners
def test_data_parallel_run_equals_unsharded_run(model: Model, use_shardy: bool) -> None:
    expected = on_one_device(model, INTEGERS, "train_step")
    with shardy(use_shardy):
        found = data_parallel(*problem(model, INTEGERS, "train_step", unmarked))
    assert_equal(found, expected, 0.0)


@every_model
def test_marks_mean_nothing_to_plain_jit(model: Model) -> None:
    expected = on_one_device(model, REALS, "train_step")
    found = unsharded(*problem(model, REALS, "train_step", autoshard.shard))
    assert_equal(found, expected, 0.0)


@every_model
def test_integers_stay_exact(model: Model) -> None:
    """In float64 the integer step gives the same numbers: no sum in it was ever rounded."""
    fn, args = problem(model, INTEGERS, "train_step", unmarked)
    expected = on_one_device(model, INTEGERS, "train_step")
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: x.astype(np.float64) if x.dtype == np.float32 else x, args)
        found = jax.tree.map(
            lambda x, like: np.asarray(x, np.asarray(like).dtype), unsharded(fn, wide), expected
        )
    for path, leaf in jax.tree_util.tree_leaves_with_path(expected[1]):
        assert np.any(leaf != 0), f"{jax.tree_util.keystr(path)}: the gradient vanishes"
    assert_equal(found, expected, 0.0)


@every_model
def test_harness_accepts_plain_jax_on_a_mesh(model: Model) -> None:
    fn, args = problem(model, INTEGERS, "train_step", unmarked)
    expected = on_one_device(model, INTEGERS, "train_step")
    mesh = jax.make_mesh((2, 4), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)

    def place(leaf: Any) -> Any:
        spec = [None] * np.ndim(leaf)
        if spec and leaf.shape[-1] % 4 == 0:
            spec[-1] = "tp"
        return jax.device_put(leaf, NamedSharding(mesh, PartitionSpec(*spec)))

    found = unsharded(fn, jax.tree.map(place, args))
    assert_equal(found, expected, 0.0)


def test_harness_sees_one_wrong_bit() -> None:
    expected = {"a": np.ones(4, np.float32), "b": np.zeros(3, np.float32)}
    found = {"a": np.ones(4, np.float32), "b": np.array([0, -0.0, 0], np.float32)}
    assert_equal(found, expected, 1e-5)
    with pytest.raises(AssertionError, match=r"\['b'\]: 1 of 3 entries differ"):
        assert_equal(found, expected, 0.0)


def test_harness_measures_relative_to_the_largest_entry() -> None:
    expected = np.array([100.0, 1e-3], np.float32)
    assert_equal(expected + np.array([0, 5e-4], np.float32), expected, 1e-5)
    with pytest.raises(AssertionError, match=r"relative difference 2e-05"):
        assert_equal(expected + np.array([0, 2e-3], np.float32), expected, 1e-5)
    with pytest.raises(AssertionError, match="inf"):
        assert_equal(np.array([100.0, np.nan], np.float32), expected, 1e-5)
