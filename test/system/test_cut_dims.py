"""Ops along a cut dim are right: XLA's partitioner gets many of them wrong, or aborts."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equivalence import shardy, unsharded
from jax import lax

import autoshard

P = jax.sharding.PartitionSpec
NHWC = ("NHWC", "HWIO", "NHWC")


def integers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(np.float32)


def convolution(**options: Any) -> Callable[..., Any]:
    settings: dict[str, Any] = {"window_strides": (1, 1), "padding": "SAME", **options}
    return lambda x, w: lax.conv_general_dilated(x, w, dimension_numbers=NHWC, **settings)


def with_gradients(fn: Callable[..., Any]) -> Callable[..., Any]:
    return jax.value_and_grad(lambda *args: jnp.sum(fn(*args) ** 2), argnums=(0, 1))


def pooled(window: int, stride: int, padding: str) -> Callable[..., Any]:
    sizes = (1, window, window, 1), (1, stride, stride, 1)
    return lambda x: lax.reduce_window(x, -jnp.inf, lax.max, *sizes, padding)


def row_windows(taps: int, stride: int, padding: tuple[int, int], apart: int) -> Any:
    """Sums of windows along rows whose elements stand ``apart``."""
    sizes = (taps, 1), (stride, 1)
    return lambda x: lax.reduce_window(
        x, np.float32(0), lax.add, *sizes, (padding, (0, 0)), base_dilation=(apart, 1)
    )


def gradient_of_pool(window: int, stride: int, padding: str) -> Callable[..., Any]:
    pool = pooled(window, stride, padding)
    return jax.grad(lambda x: jnp.sum(pool(x) ** 2))


def update(mode: str, name: str) -> Callable[..., Any]:
    return lambda x, places, rows: getattr(x.at[places], name)(rows, mode=mode)


IMAGES, KERNEL = integers(1, 16, 16, 3), integers(3, 3, 3, 5)
"""Neither batch nor features can be cut."""
WIDE = integers(3, 3, 3, 8)
TABLE, ROWS = integers(32, 7), integers(6, 7)
PLACES = np.array([0, 5, 5, -1, 40, -70], np.int32)
ROW_CUT = P(None, "a", "b")
FEATURES_TOO = P(None, "b", None, None), P(None, None, None, "a")

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {
    "image and features": (convolution(), (IMAGES, WIDE), FEATURES_TOO),
    "gradients": (with_gradients(convolution()), (IMAGES, KERNEL), (ROW_CUT, P())),
    "gradients, features too": (with_gradients(convolution()), (IMAGES, WIDE), FEATURES_TOO),
    "strided gradients": (
        with_gradients(convolution(window_strides=(2, 2))),
        (IMAGES, KERNEL),
        (ROW_CUT, P()),
    ),
    "patches": (
        with_gradients(convolution(window_strides=(4, 4), padding="VALID")),
        (IMAGES, integers(4, 4, 3, 5)),
        (ROW_CUT, P()),
    ),
    "valid": (
        convolution(padding=((0, 0), (1, 1))),
        (integers(1, 18, 16, 3), KERNEL),
        (P(None, "a"), P()),
    ),
    "dilated kernel": (
        with_gradients(convolution(rhs_dilation=(2, 2))),
        (IMAGES, WIDE),
        FEATURES_TOO,
    ),
    "dilated image": (
        convolution(lhs_dilation=(2, 1), padding=((2, 1), (1, 1))),
        (IMAGES, KERNEL),
        (ROW_CUT, P()),
    ),
    "negative padding": (
        convolution(padding=((-1, 3), (1, 1))),
        (IMAGES, KERNEL),
        (ROW_CUT, P()),
    ),
    "gradients, dilated image, negative padding": (
        with_gradients(
            convolution(
                window_strides=(1, 2),
                padding=((0, 0), (-1, -1)),
                lhs_dilation=(1, 2),
                rhs_dilation=(2, 1),
            )
        ),
        (integers(1, 16, 16, 3), integers(1, 2, 3, 5)),
        (P(None, "a", "b"), P()),
    ),
    # Blocks have no padding along the cut dim: XLA would take it for one of groups.
    "dilated by the number of taps": (
        convolution(padding=((0, 3), (0, 2)), lhs_dilation=(2, 2), rhs_dilation=(2, 1)),
        (integers(1, 1, 8, 2), integers(2, 2, 2, 5)),
        (P(None, None, "a"), P()),
    ),
    "depthwise": (
        with_gradients(convolution(feature_group_count=3)),
        (integers(1, 32, 16, 3), integers(7, 7, 1, 3)),
        (P(None, "a", "b"), P()),
    ),
    "mean pool": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME"),
        (IMAGES,),
        (ROW_CUT,),
    ),
    "mean pool, gradient": (
        jax.grad(
            lambda x: jnp.sum(
                lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") ** 2
            )
        ),
        (IMAGES,),
        (ROW_CUT,),
    ),
    "windows of cropped rows": (row_windows(2, 1, (-1, 2), 1), (TABLE,), (P("a"),)),
    "windows of rows apart": (row_windows(2, 2, (-1, 2), 2), (TABLE,), (P("b"),)),
    "windows between rows": (row_windows(1, 2, (1, 0), 2), (TABLE,), (P("b"),)),
    "max pool": (pooled(3, 2, "SAME"), (IMAGES,), (ROW_CUT,)),
    "max pool, ties": (gradient_of_pool(2, 2, "VALID"), (IMAGES,), (ROW_CUT,)),
    "overlapping max pool, ties": (gradient_of_pool(3, 1, "SAME"), (IMAGES,), (ROW_CUT,)),
    "wide max pool": (gradient_of_pool(3, 2, "SAME"), (IMAGES,), (ROW_CUT,)),
    "pad": (lambda x: lax.pad(x, 5.0, ((2, 2, 0), (0, 0, 0))), (TABLE,), (P("a"),)),
    "interior and negative pad": (
        lambda x: lax.pad(x, 5.0, ((-1, 3, 2), (0, 0, 0))),
        (integers(34, 7),),
        (P("a"),),
    ),
    # The first blocks have padding alone.
    "interior pad far behind": (
        lambda x: lax.pad(x, 5.0, ((23, 14, 1), (0, 0, 0))),
        (integers(8, 7),),
        (P("b"),),
    ),
    "cropped interior pad far behind": (
        lambda x: lax.pad(x, 5.0, ((11, -2, 1), (0, 0, 0))),
        (integers(4, 7),),
        (P("b"),),
    ),
    "interior pad of nothing": (
        lambda x: lax.pad(x[:0], 5.0, ((4, 4, 1), (0, 0, 0))),
        (TABLE,),
        (P("b"),),
    ),
    "reverse": (lambda x: lax.rev(x, (0,)), (TABLE,), (P("b"),)),
    "half": (lambda x: x[16:], (TABLE,), (P("b"),)),
    "every second row": (lambda x: x[::2], (TABLE,), (P("b"),)),
    "roll": (lambda x: jnp.roll(x, 3, axis=0), (TABLE,), (P("b"),)),
    **{
        f"update at {start}": (
            lambda x, rows, i: lax.dynamic_update_slice(x, rows, (i, 0)) * 2,
            (TABLE, ROWS, np.int32(start)),
            (P("b"), P(), P()),
        )
        for start in (-3, 6, 40)
    },
    "complex update": (
        lambda x, rows, i: lax.dynamic_update_slice(x + 0j, rows + 0j, (i, 0)).real,
        (TABLE, ROWS, np.int32(3)),
        (P("b"), P(), P()),
    ),
    "long update": (
        lambda x, rows, i: lax.dynamic_update_slice(x, rows, (i, 0)),
        (TABLE, integers(30, 7), np.int32(1)),
        (P("b"), P(), P()),
    ),
    "slice at the end": (
        lambda x, i: lax.dynamic_slice(x, (i, 0), (16, 7)),
        (TABLE, np.int32(25)),
        (P(), P()),
    ),
    "clipped rows": (
        lambda x, i: jnp.take(x, i, axis=0, mode="clip"),
        (TABLE, PLACES),
        (P("b"), P()),
    ),
    "filled rows": (
        lambda x, i: jnp.take(x, i, axis=0, mode="fill"),
        (TABLE, PLACES),
        (P("b"), P()),
    ),
    **{
        f"{mode}ped {name}": (
            update(mode, name),
            (TABLE, PLACES, ROWS),
            (P("b"), P(), P()),
        )
        for mode in ("clip", "drop")
        for name in ("add", "max")
    },
    "one row": (
        lambda x, i, row: update("promise_in_bounds", "add")(x * 1, i, row),
        (TABLE, PLACES[1:2], ROWS[:1]),
        (P("b"), P(), P()),
    ),
    "added in parts": (
        update("drop", "add"),
        (TABLE, np.arange(-4, 36, dtype=np.int32), integers(40, 7)),
        (P(), P("b"), P("b")),
    ),
}
RESULTS: dict[str, Any] = {
    "slice at the end": P("b"),
    "interior pad far behind": P("b"),
    "cropped interior pad far behind": P("b"),
    "interior pad of nothing": P("b"),
    "dilated by the number of taps": P(None, None, "a"),
}


@pytest.mark.parametrize("use_shardy", [True, False], ids=["shardy", "gspmd"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_op_along_a_cut_dim_gives_what_it_gives_whole(name: str, use_shardy: bool) -> None:
    fn, args, pins = PROGRAMS[name]
    given = {"in_shardings": pins, "out_shardings": RESULTS.get(name)}
    with shardy(use_shardy), warnings.catch_warnings():
        warnings.simplefilter("ignore", autoshard.PlanMismatchWarning)
        found = autoshard.jit(fn, mesh="a=2,b=4", mode="semi_auto", **given)(*args)
        expected = unsharded(fn, args)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
