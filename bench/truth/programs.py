"""Small programs whose ops show what a partitioner does: strides, dilations, windows, indices.

Each is a function of arrays and their types. ``gradient`` says that the ops of its gradient are
wanted too. Sizes are multiples of 8, so that every dim can be cut into 2, 4 and 8 parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

F32, BF16, I32, BOOL, C64 = jnp.float32, jnp.bfloat16, jnp.int32, jnp.bool_, jnp.complex64

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """A function, what it is of, and whether its gradient is wanted."""

    group: str
    """The op that it is about."""
    function: Callable[..., Any]
    arguments: tuple[jax.ShapeDtypeStruct, ...]
    gradient: bool = False

    def lowered(self) -> str:
        """StableHLO of the function, or of the function and its gradient."""
        function = _with_gradient(self.function) if self.gradient else self.function
        return jax.jit(function).lower(*self.arguments).as_text()


def _with_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """The results, and the gradients by all floating-point arguments.

    The cotangent is as large as the result, which stands for it: no constants, nothing folded.
    """

    def both(*arguments: jax.Array) -> Any:
        is_float = [jnp.issubdtype(a.dtype, jnp.inexact) for a in arguments]

        def of_floats(*floats: jax.Array) -> Any:
            rest = iter(floats)
            return function(
                *(next(rest) if f else a for f, a in zip(is_float, arguments, strict=True))
            )

        floats = [a for f, a in zip(is_float, arguments, strict=True) if f]
        result, pull_back = jax.vjp(of_floats, *floats)
        return result, pull_back(result)

    return both


def of(
    group: str, function: Callable[..., Any], *arguments: Any, gradient: bool = False
) -> Program:
    """A program of float32 arrays, where an argument is a shape only."""
    types = tuple(
        jax.ShapeDtypeStruct(*a) if a and isinstance(a[0], tuple) else jax.ShapeDtypeStruct(a, F32)
        for a in arguments
    )
    return Program(group, function, types, gradient)


# Convolutions -----------------------------------------------------------------------------------

NHWC = ("NHWC", "HWIO", "NHWC")


def convolutions() -> Iterator[Program]:
    def conv(strides: Sequence[int], padding: Any, **rest: Any) -> Callable[..., Any]:
        rest.setdefault("dimension_numbers", NHWC)
        return lambda x, w: lax.conv_general_dilated(x, w, strides, padding, **rest)

    image, kernel = (8, 16, 16, 8), (3, 3, 8, 8)
    ones, twos = (1, 1), (2, 2)

    def case(
        function: Any, x: Shape = image, w: Shape = kernel, g: bool = True, t: Any = F32
    ) -> Program:
        return of("convolution", function, (x, t), (w, t), gradient=g)

    yield case(conv(ones, "SAME"))
    yield case(conv(ones, "VALID"))
    yield case(conv(ones, "VALID"), w=(1, 1, 8, 8))
    yield case(conv(twos, "SAME"))
    yield case(conv(twos, "VALID"), w=(2, 2, 8, 8))
    yield case(conv(twos, "SAME"), w=(1, 1, 8, 8))
    yield case(conv((4, 4), "VALID"), w=(4, 4, 8, 8))
    yield case(conv(ones, "SAME"), w=(5, 5, 8, 8))
    yield case(conv(ones, "SAME"), w=(2, 2, 8, 8))
    yield case(conv(ones, ((3, 3), (3, 3))), w=(7, 7, 8, 8))
    yield case(conv(twos, ((3, 3), (3, 3))), w=(7, 7, 8, 8))
    yield case(conv(ones, ((2, 0), (2, 0))))
    yield case(conv(ones, ((0, 2), (0, 2))))
    yield case(conv(ones, ((-1, -1), (-1, -1))))
    yield case(conv(ones, ((-1, 1), (2, -1))))
    yield case(conv(twos, ((1, 0), (0, 1))))
    yield case(conv(ones, "SAME", rhs_dilation=twos))
    yield case(conv(ones, "VALID", rhs_dilation=twos))
    yield case(conv(twos, "SAME", rhs_dilation=twos))
    yield case(conv(ones, "SAME", rhs_dilation=(4, 4)))
    yield case(conv(ones, ((1, 1), (1, 1)), lhs_dilation=twos))
    yield case(conv(ones, ((1, 2), (1, 2)), lhs_dilation=twos))
    yield case(conv(ones, ((2, 1), (2, 1)), lhs_dilation=twos), w=(4, 4, 8, 8))
    yield case(conv(ones, ((-1, 2), (-1, 2)), lhs_dilation=twos))
    yield case(conv(twos, ((1, 2), (1, 2)), lhs_dilation=twos))
    yield case(conv(ones, ((2, 3), (2, 3)), lhs_dilation=twos, rhs_dilation=twos))
    yield case(conv(ones, "SAME", feature_group_count=2), w=(3, 3, 4, 16))
    yield case(conv(ones, "SAME", feature_group_count=8), w=(3, 3, 1, 8))
    yield case(conv(twos, "SAME", feature_group_count=8), w=(3, 3, 1, 16))
    yield case(conv(ones, "SAME", batch_group_count=2), w=(3, 3, 8, 16))
    yield case(conv(ones, "SAME"), x=(1, 16, 16, 8))
    yield case(conv(ones, "SAME"), x=(1, 32, 32, 8))
    yield case(conv(ones, "SAME"), t=BF16)
    yield case(conv(ones, "SAME"), t=I32, g=False)
    yield case(conv(ones, "SAME"), t=C64, g=False)
    yield case(
        conv(ones, "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW")),
        x=(8, 8, 16, 16),
        w=(8, 8, 3, 3),
    )
    yield case(
        conv((1,), "SAME", dimension_numbers=("NHC", "HIO", "NHC")), x=(8, 32, 8), w=(3, 8, 8)
    )
    yield case(
        conv((1,), ((3, 0),), dimension_numbers=("NHC", "HIO", "NHC")), x=(8, 32, 8), w=(4, 8, 8)
    )
    yield case(
        conv((2,), ((1, 0),), dimension_numbers=("NHC", "HIO", "NHC")), x=(8, 32, 8), w=(2, 8, 8)
    )
    yield case(
        conv((1, 1, 1), "SAME", dimension_numbers=("NDHWC", "DHWIO", "NDHWC")),
        x=(4, 8, 8, 8, 4),
        w=(3, 3, 3, 4, 4),
    )
    yield case(conv((2, 1), "SAME"))
    yield case(conv((1, 2), ((0, 0), (1, 1))))


# Windows ----------------------------------------------------------------------------------------


def windows() -> Iterator[Program]:
    image = (8, 16, 16, 8)

    def pool(init: Any, function: Any, window: Any, strides: Any, padding: Any, **rest: Any) -> Any:
        return lambda x: lax.reduce_window(
            x, x.dtype.type(init), function, window, strides, padding, **rest
        )

    sizes = (
        ((1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
        ((1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
        ((1, 3, 3, 1), (1, 1, 1, 1), "SAME"),
        ((1, 2, 2, 1), (1, 1, 1, 1), "VALID"),
        ((1, 3, 3, 1), (1, 2, 2, 1), "VALID"),
        ((1, 2, 2, 1), (1, 4, 4, 1), "VALID"),
        ((1, 5, 5, 1), (1, 1, 1, 1), "SAME"),
        ((1, 2, 2, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0))),
        ((1, 3, 3, 1), (1, 1, 1, 1), ((0, 0), (2, 0), (0, 2), (0, 0))),
        ((1, 16, 1, 1), (1, 1, 1, 1), ((0, 0), (15, 0), (0, 0), (0, 0))),
    )
    for window, strides, padding in sizes:
        for init, function in ((-jnp.inf, lax.max), (0, lax.add), (jnp.inf, lax.min)):
            yield of(
                "window",
                pool(init, function, window, strides, padding),
                image,
                gradient=function is not lax.min,
            )
    window, ones = (1, 3, 3, 1), (1, 1, 1, 1)
    negative = ((0, 0), (-1, -1), (-1, 2), (0, 0))
    yield of("window", lambda x: lax.reduce_window(x, 0.0, lax.add, window, ones, negative), image)
    for base, dilation, strides in product((1, 2), (1, 2), (1, 2)):
        if base * dilation > 1:
            b, d, s = ((1, n, n, 1) for n in (base, dilation, strides))
            for padding in ("VALID", "SAME"):
                yield of(
                    "window",
                    pool(0, lax.add, window, s, padding, base_dilation=b, window_dilation=d),
                    image,
                )
                yield of(
                    "window",
                    pool(-jnp.inf, lax.max, window, s, padding, base_dilation=b, window_dilation=d),
                    image,
                )
    yield of("window", pool(-(2**30), lax.max, window, (1, 2, 2, 1), "SAME"), (image, I32))
    yield of("window", pool(0, lax.add, window, ones, "SAME"), (image, BF16))
    yield of(
        "window",
        lambda x: lax.reduce_window(x, False, lax.bitwise_or, window, ones, "SAME"),
        (image, BOOL),
    )
    for scan in (lax.cumsum, lax.cummax, lax.cumprod, lax.cummin):
        for reverse in (False, True):
            yield of(
                "window",
                lambda x, s=scan, r=reverse: s(x, axis=1, reverse=r),
                (8, 16, 8),
                gradient=scan is lax.cumsum,
            )
    yield of("window", lambda x: lax.cumsum(x, axis=0), ((64,), I32))


# Moves along dims -------------------------------------------------------------------------------


def moves() -> Iterator[Program]:
    x = (16, 32, 8)
    pads = (
        (1, 0, 0),
        (0, 1, 0),
        (1, 1, 0),
        (3, 5, 0),
        (32, 0, 0),
        (0, 32, 0),
        (-1, 0, 0),
        (0, -1, 0),
        (-8, 0, 0),
        (0, -8, 0),
        (-1, -1, 0),
        (-1, 1, 0),
        (1, -1, 0),
        (8, -8, 0),
        (-8, 8, 0),
        (0, 0, 1),
        (1, 0, 1),
        (0, 1, 1),
        (1, 1, 1),
        (0, 0, 3),
        (-1, 1, 2),
        (-1, 0, 1),
        (0, -1, 1),
        (-1, -1, 1),
        (-8, 9, 1),
        (4, 4, 0),
        (8, 0, 0),
        (0, 8, 0),
        (16, 16, 0),
        (0, 7, 7),
    )
    for pad in pads:
        yield of(
            "pad",
            lambda a, p=pad: lax.pad(a, a.dtype.type(0), ((0, 0, 0), p, (0, 0, 0))),
            x,
            gradient=True,
        )
        yield of("pad", lambda a, p=pad: lax.pad(a, a.dtype.type(7), (p,)), ((32,), I32))
    # Few elements a device, and the first devices have padding alone.
    far = ((8, 23, 14, 1), (8, 19, 15, 2), (4, 11, -2, 1), (12, 29, 16, 1), (8, 41, 0, 1))
    for (size, *pad), dtype in product(far, (F32, I32)):
        fn = lambda a, p=tuple(pad): lax.pad(a, a.dtype.type(7), (p,))  # noqa: E731
        yield of("pad", fn, ((size,), dtype))
    yield of("pad", lambda a: lax.pad(a, 0.0, ((1, 1, 0), (2, 0, 0), (0, 0, 0))), x, gradient=True)
    yield of("pad", lambda a: lax.pad(a, 0.0, ((-1, 1, 0), (0, 0, 1), (0, 0, 0))), x)
    yield of("pad", lambda a: lax.pad(a, False, ((1, 1, 0), (0, 0, 0), (0, 0, 0))), (x, BOOL))
    yield of(
        "pad", lambda a: lax.pad(a, a.dtype.type(1), ((1, 1, 0), (0, 0, 0), (0, 0, 0))), (x, BF16)
    )
    yield of(
        "pad", lambda a: lax.pad(a, a.dtype.type(1), ((1, 1, 0), (0, 0, 0), (0, 0, 0))), (x, C64)
    )
    yield of("pad", lambda a, v: lax.pad(a, v, ((1, 7, 0), (0, 0, 1), (0, 0, 0))), x, ((), F32))
    slices = (
        (0, 16, 1),
        (16, 32, 1),
        (1, 31, 1),
        (8, 24, 1),
        (1, 9, 1),
        (1, 17, 1),
        (0, 32, 2),
        (1, 32, 2),
        (0, 31, 2),
        (3, 29, 3),
        (0, 8, 1),
        (24, 32, 1),
        (0, 32, 4),
        (2, 32, 4),
        (1, 25, 3),
        (0, 24, 1),
        (4, 28, 1),
        (31, 32, 1),
        (0, 1, 1),
        (0, 31, 1),
        (1, 32, 1),
    )
    for start, limit, stride in slices:
        yield of("slice", lambda a, s=start, n=limit, d=stride: lax.slice_in_dim(a, s, n, d, 1), x)
    yield of("slice", lambda a: lax.slice(a, (1, 4, 0), (15, 28, 8), (1, 2, 1)), x)
    yield of("slice", lambda a: lax.slice(a, (8, 16, 0), (16, 32, 8)), x)
    yield of("slice", lambda a: lax.slice(a, (1, 4, 0), (15, 28, 8), (1, 1, 1)), (x, BOOL))
    for dims in ((0,), (1,), (0, 1), (0, 1, 2)):
        yield of("reverse", lambda a, d=dims: lax.rev(a, d), x)
    yield of("reverse", lambda a: lax.rev(a, (0,)), ((32,), I32))
    for count in (2, 3):
        for dim in (0, 1):
            yield of("concatenate", lambda *a, d=dim: lax.concatenate(a, d), *[x] * count)
    yield of("concatenate", lambda a, b: lax.concatenate((a, b), 1), (16, 8, 8), (16, 24, 8))
    yield of("concatenate", lambda a, b: lax.concatenate((a, b), 1), (16, 31, 8), (16, 1, 8))
    yield of(
        "concatenate",
        lambda a, b: lax.concatenate((a, b), 1),
        ((16, 8, 8), I32),
        ((16, 24, 8), I32),
    )
    yield of("concatenate", lambda a, b: lax.concatenate((a, b), 0), (1,), (31,))


# Indices ----------------------------------------------------------------------------------------


def indices() -> Iterator[Program]:
    i = ((), I32)
    x = (16, 32, 8)
    zero = 0
    for size in (1, 2, 8, 16, 24, 31, 32):
        yield of(
            "dynamic_slice",
            lambda a, n, s=size: lax.dynamic_slice(a, (n * 0, n, n * 0), (16, s, 8)),
            x,
            i,
        )
        yield of(
            "dynamic_update_slice",
            lambda a, u, n: lax.dynamic_update_slice(a, u, (n, n, n)),
            x,
            (16, size, 8),
            i,
        )
    yield of("dynamic_slice", lambda a, n, m: lax.dynamic_slice(a, (n, m, n), (8, 8, 8)), x, i, i)
    yield of("dynamic_slice", lambda a, n: lax.dynamic_slice(a, (n,), (8,)), ((32,), I32), i)
    yield of(
        "dynamic_slice", lambda a, n: lax.dynamic_slice(a, (n, n, n), (16, 8, 8)), (x, BOOL), i
    )
    yield of(
        "dynamic_slice", lambda a, n: lax.dynamic_slice(a, (n, n, n), (16, 8, 8)), (x, BF16), i
    )
    yield of(
        "dynamic_update_slice",
        lambda a, u, n, m: lax.dynamic_update_slice(a, u, (n, m, n)),
        x,
        (8, 8, 8),
        i,
        i,
    )
    yield of(
        "dynamic_update_slice",
        lambda a, u, n: lax.dynamic_update_slice(a, u, (n,)),
        ((32,), I32),
        ((8,), I32),
        i,
    )
    yield of(
        "dynamic_update_slice",
        lambda a, u, n: lax.dynamic_update_slice(a, u, (n, n, n)),
        (x, BF16),
        ((16, 1, 8), BF16),
        i,
    )
    for count, mode in product((1, 2), ("clip", "drop")):
        few = ((count,), I32)
        for name in ("set", "add", "multiply", "max"):
            for a, u in (((16,), (count,)), ((16, 8), (count, 8))):
                yield of(
                    "scatter",
                    lambda a, n, u, f=name, m=mode: getattr(a.at[n], f)(u, mode=m),
                    a,
                    few,
                    u,
                )
    for count in (1, 2):
        few = ((count,), I32)
        yield of("gather", lambda a, n: a.at[n].get(mode="clip"), (16,), few, gradient=True)
        yield of("gather", lambda a, n: a.at[n].get(mode="clip"), (16, 8), few, gradient=True)
        yield of(
            "gather",
            lambda a, n: jnp.take_along_axis(a, n, 1),
            (8, 16),
            ((8, count), I32),
            gradient=True,
        )
        yield of("gather", lambda a, n, m: a[n, m], (16, 16), few, few, gradient=True)
        yield of(
            "scatter",
            lambda a, n, u: jax.vmap(lambda b, k, v: b.at[k].set(v))(a, n, u),
            (8, 16, 8),
            ((8, count), I32),
            (8, count, 8),
        )
    yield of("scatter", lambda a, n, u: a.at[n].add(u), (16, 8), i, (8,))
    yield of("scatter", lambda a, n, u: a.at[n].set(u), (16, 8), i, (8,))
    yield of("scatter", lambda a, n, u: a.at[n].set(u), (16,), i, ((), F32))
    yield of("scatter", lambda a, n, m, u: a.at[n, m].set(u), (16, 16), i, i, ((), F32))
    yield of("scatter", lambda a, n, u: a.at[:, n].add(u), (16, 16), i, (16,))
    yield of("gather", lambda a, n: a[n], (16, 8), i, gradient=True)
    yield of("gather", lambda a, n: a[:, n], (16, 16), i, gradient=True)
    rows, grid, vector = ((8,), I32), ((8, 16), I32), ((32,), I32)
    t = (64, 16, 8)
    modes = ("clip", "fill", "promise_in_bounds")
    for mode in modes:
        yield of("gather", lambda a, n, m=mode: a.at[n].get(mode=m), t, grid, gradient=True)
    yield of("gather", lambda a, n: a[n], t, rows, gradient=True)
    yield of("gather", lambda a, n: a[n], (64,), vector, gradient=True)
    yield of("gather", lambda a, n: a[n], ((64,), I32), vector)
    yield of("gather", lambda a, n: a[:, n], t, rows, gradient=True)
    yield of("gather", lambda a, n: a[:, :, n], t, grid, gradient=True)
    yield of("gather", lambda a, n: a[:, n, 0:4], t, rows, gradient=True)
    yield of("gather", lambda a, n, m: a[n, :, m], t, grid, grid, gradient=True)
    yield of("gather", lambda a, n, m: a[n, m], t, grid, grid, gradient=True)
    yield of("gather", lambda a, n, m: a[n, m], (64, 16), vector, vector, gradient=True)
    yield of(
        "gather", lambda a, n: jnp.take_along_axis(a, n, 1), t, ((64, 8, 8), I32), gradient=True
    )
    yield of(
        "gather", lambda a, n: jnp.take_along_axis(a, n, 1), (32, 64), ((32, 1), I32), gradient=True
    )
    yield of(
        "gather",
        lambda a, n: jax.vmap(lambda b, k: b[k])(a, n),
        (8, 64, 16),
        ((8, 16), I32),
        gradient=True,
    )
    yield of(
        "gather",
        lambda a, n: jax.vmap(lambda b, k: lax.dynamic_slice(b, (k, zero), (8, 8)))(a, n),
        (8, 32, 8),
        rows,
        gradient=True,
    )
    yield of(
        "gather",
        lambda a, n: jax.vmap(lambda k: lax.dynamic_slice(a, (k, zero, zero), (8, 16, 8)))(n),
        t,
        rows,
        gradient=True,
    )
    yield of(
        "gather",
        lambda a, n: jax.vmap(lambda k: lax.dynamic_slice(a, (k, zero, zero), (1, 16, 8)))(n),
        t,
        rows,
        gradient=True,
    )
    yield of(
        "gather",
        lambda a, n: a.at[n].get(indices_are_sorted=True, mode="clip"),
        t,
        rows,
        gradient=True,
    )
    yield of(
        "gather", lambda a, n: a.at[n].get(unique_indices=True, mode="clip"), t, rows, gradient=True
    )
    yield of("gather", lambda a, n: a[n], (t, BF16), rows, gradient=True)
    yield of("gather", lambda a, n: a[n], (t, BOOL), rows)
    yield of("gather", lambda a, n: a[n], (t, C64), rows)
    for name, mode in product(("set", "add", "multiply", "min", "max"), ("clip", "drop")):
        if mode == "clip" or name in ("set", "add"):
            yield of(
                "scatter",
                lambda a, n, u, f=name, m=mode: getattr(a.at[n], f)(u, mode=m),
                t,
                rows,
                (8, 16, 8),
            )
    yield of("scatter", lambda a, n, u: a.at[n].set(u), (64,), ((8,), I32), (8,))
    yield of("scatter", lambda a, n, u: a.at[n].add(u), (8,), ((1,), I32), (1,))
    yield of("scatter", lambda a, n, u: a.at[n].add(u), ((64,), I32), ((16,), I32), ((16,), I32))
    yield of("scatter", lambda a, n, u: a.at[:, n].set(u), t, rows, (64, 8, 8))
    yield of("scatter", lambda a, n, u: a.at[:, n].add(u), t, rows, (64, 8, 8))
    yield of("scatter", lambda a, n, u: a.at[n, :, n].add(u), t, grid, (8, 16, 16))
    yield of("scatter", lambda a, n, m, u: a.at[n, m].set(u), t, rows, rows, (8, 8))
    yield of("scatter", lambda a, n, m, u: a.at[n, m].add(u), t, rows, rows, (8, 8))
    yield of(
        "scatter",
        lambda a, n, u: a.at[n].set(u, indices_are_sorted=True, unique_indices=True),
        t,
        rows,
        (8, 16, 8),
    )
    yield of(
        "scatter",
        lambda a, n, u: a.at[n].add(u, indices_are_sorted=True, unique_indices=True),
        t,
        rows,
        (8, 16, 8),
    )
    yield of(
        "scatter",
        lambda a, n, u: jax.vmap(lambda b, k, v: lax.dynamic_update_slice(b, v, (k, zero)))(
            a, n, u
        ),
        (8, 32, 8),
        rows,
        (8, 8, 8),
    )
    yield of(
        "scatter",
        lambda a, n, u: jax.vmap(lambda b, k, v: b.at[k].set(v))(a, n, u),
        (8, 64, 16),
        ((8, 8), I32),
        (8, 8, 16),
    )
    yield of(
        "scatter",
        lambda a, n, u: jax.vmap(lambda b, k, v: b.at[k].add(v))(a, n, u),
        (8, 64, 16),
        ((8, 8), I32),
        (8, 8, 16),
    )
    yield of("scatter", lambda a, n, u: a.at[n].add(u), (t, BF16), rows, ((8, 16, 8), BF16))
    yield of("scatter", lambda a, n, u: a.at[n].set(u), (t, BOOL), rows, ((8, 16, 8), BOOL))
    yield of("scatter", lambda a, n, u: a.at[n].add(u), (t, C64), rows, ((8, 16, 8), C64))


# All other ops ----------------------------------------------------------------------------------


def products() -> Iterator[Program]:
    def dot(contracted: Any, batch: Any = ((), ())) -> Callable[..., Any]:
        return lambda x, y: lax.dot_general(x, y, (contracted, batch))

    yield of("dot", dot(((1,), (0,))), (16, 32), (32, 8), gradient=True)
    yield of("dot", dot(((0,), (0,))), (32, 16), (32, 8), gradient=True)
    yield of("dot", dot(((2,), (1,)), ((0,), (0,))), (8, 16, 32), (8, 32, 8), gradient=True)
    yield of(
        "dot", dot(((3,), (3,)), ((0, 2), (0, 2))), (4, 16, 8, 16), (4, 8, 8, 16), gradient=True
    )
    yield of("dot", dot(((1, 2), (0, 1))), (8, 16, 8), (16, 8, 24), gradient=True)
    yield of("dot", dot(((), ())), (16,), (8,), gradient=True)
    yield of("dot", dot(((0,), (0,))), (32,), (32,))
    yield of("dot", dot(((1,), (0,))), (16, 32), (32,), gradient=True)
    yield of("dot", dot(((), ()), ((0,), (0,))), (16, 8), (16, 8))
    yield of("dot", dot(((1,), (0,))), (1, 32), (32, 16))
    for dtype in (BF16, I32, C64, jnp.int8):
        yield of("dot", dot(((2,), (1,)), ((0,), (0,))), ((8, 16, 32), dtype), ((8, 32, 8), dtype))


def shapes() -> Iterator[Program]:
    x = (16, 32, 8)
    for shape in (
        (512, 8),
        (16, 256),
        (4096,),
        (16, 4, 8, 8),
        (2, 8, 32, 8),
        (16, 32, 2, 4),
        (16, 1, 32, 8),
        (8, 2, 256),
        (128, 4, 8),
        (4, 4, 8, 32),
    ):
        yield of("reshape", lambda a, s=shape: a.reshape(s), x)
    yield of("reshape", lambda a: a.reshape(8, 16), ((128,), I32))
    yield of("reshape", lambda a: a.reshape(16, 8), ((16, 8, 1), BOOL))
    for order in ((1, 0, 2), (2, 1, 0), (0, 2, 1), (2, 0, 1)):
        yield of("transpose", lambda a, o=order: lax.transpose(a, o), x)
    yield of("broadcast", lambda a: lax.broadcast_in_dim(a, (8, 16, 32), (1, 2)), (16, 32))
    yield of("broadcast", lambda a: lax.broadcast_in_dim(a, (16, 8, 32), (0, 2)), (16, 32))
    yield of("broadcast", lambda a: lax.broadcast_in_dim(a, (16, 8, 32), (0, 1, 2)), (16, 1, 32))
    yield of("broadcast", lambda a: lax.broadcast_in_dim(a, (16, 8), (0,)), ((16,), I32))
    yield of("broadcast", lambda a: lax.broadcast_in_dim(a, (16, 8), ()), ((), F32))
    yield of("bitcast", lambda a: lax.bitcast_convert_type(a, jnp.int8), x)
    yield of("bitcast", lambda a: lax.bitcast_convert_type(a, jnp.float32), ((16, 8, 4), jnp.int8))
    yield of("bitcast", lambda a: lax.bitcast_convert_type(a, I32), x)
    yield of("concatenate", lambda a, b: lax.concatenate((a, b), 0), (8,), (24,))


def reductions() -> Iterator[Program]:
    x = (16, 32, 8)
    for axes in ((0,), (1,), (0, 2), (0, 1, 2)):
        yield of("reduce", lambda a, d=axes: a.sum(d), x, gradient=True)
        yield of("reduce", lambda a, d=axes: a.max(d), x)
        yield of("reduce", lambda a, d=axes: a.prod(d), x)
    for dtype in (I32, BF16, C64):
        yield of("reduce", lambda a: a.sum(1), (x, dtype))
    bitwise = (lax.reduce_and, lax.reduce_or, lax.reduce_xor)
    extrema = (lax.reduce_max, lax.reduce_min)
    for dtype, axes in product((I32, jnp.uint8, BOOL), ((1,), (0, 1))):
        for reduce in (*bitwise, *extrema):
            yield of("reduce", lambda a, f=reduce, d=axes: f(a, d), (x, dtype))
    yield of("reduce", lambda a: a.prod(1), (x, I32))
    # Of more numbers the product would be rounded.
    yield of("reduce", lambda a: a.prod(1), ((16, 8, 8), C64))
    for dtype, one in ((F32, np.float32), (I32, np.int32)):
        yield of(
            "reduce",
            lambda a, o=one: lax.reduce(a, o(0), lambda p, q: lax.max(abs(p), abs(q)), (1,)),
            (x, dtype),
        )
    yield of("reduce", lambda a: lax.argmax(a, 1, I32), x)
    yield of("reduce", lambda a: lax.argmin(a, 0, I32), (x, I32))
    yield of(
        "reduce",
        lambda a, b: lax.reduce((a, b), (0.0, 0.0), lambda p, q: (p[0] + q[0], p[1] + q[1]), (1,)),
        x,
        x,
    )


def orders() -> Iterator[Program]:
    x = (16, 32, 8)
    for dim in (0, 1, 2):
        yield of("sort", lambda a, d=dim: lax.sort(a, dimension=d), x)
    yield of("sort", lambda a: lax.sort(a, dimension=0), ((64,), I32))
    yield of("sort", lambda a: jnp.argsort(a, 1), x)
    yield of("sort", lambda a, b: lax.sort((a, b), dimension=1, num_keys=2), x, x)
    yield of("sort", lambda a: lax.sort(a, dimension=1, is_stable=False), (x, BF16))
    for count in (1, 2, 8):
        yield of("top_k", lambda a, k=count: lax.top_k(a, k), x)
    yield of("top_k", lambda a: lax.top_k(a, 4), ((16, 64), I32))
    for kind in (
        jnp.fft.fft,
        jnp.fft.ifft,
        jnp.fft.rfft,
        jnp.fft.irfft,
        jnp.fft.fft2,
        jnp.fft.rfft2,
    ):
        dtype = F32 if "rfft" in kind.__name__ and kind.__name__[0] == "r" else C64
        yield of("fft", kind, (x, dtype))
    yield of("cholesky", lambda a: lax.linalg.cholesky(a, symmetrize_input=False), (8, 8, 8))
    for left, transposed in product((True, False), (True, False)):
        yield of(
            "triangular_solve",
            lambda a, b, s=left, t=transposed: lax.linalg.triangular_solve(
                a, b, left_side=s, lower=True, transpose_a=t
            ),
            (8, 8, 8),
            (8, 8, 8),
        )
    key = ((4,), jnp.uint32)
    yield of("random", lambda k: lax.rng_bit_generator(k, (16, 32), jnp.uint32), key)
    yield of(
        "random", lambda k: jax.random.bits(jax.random.wrap_key_data(k, impl="rbg"), (16, 32)), key
    )


def elementwise() -> Iterator[Program]:
    x = (16, 32)
    floats = (
        lax.abs,
        lax.neg,
        lax.sign,
        lax.floor,
        lax.ceil,
        lax.round,
        lax.exp,
        lax.exp2,
        lax.expm1,
        lax.log,
        lax.log1p,
        lax.tanh,
        lax.logistic,
        lax.sin,
        lax.cos,
        lax.tan,
        lax.sqrt,
        lax.rsqrt,
        lax.cbrt,
        lax.is_finite,
        lax.erf,
        lax.erfc,
        lax.erf_inv,
        lax.lgamma,
        lax.digamma,
        lax.asin,
        lax.acos,
        lax.atan,
        lax.sinh,
        lax.cosh,
        lax.asinh,
        lax.acosh,
        lax.atanh,
        lax.bessel_i1e,
        lax.square,
        lax.integer_pow,
        lambda a: lax.reduce_precision(a, 5, 10),
        lambda a: a.astype(I32),
        lambda a: a.astype(BF16),
        lambda a: lax.optimization_barrier(a),
        lambda a: lax.clamp(-1.0, a, 1.0),
        lambda a: a > 0,
    )
    for function in floats:
        if function is lax.integer_pow:
            yield of("elementwise", lambda a: lax.integer_pow(a, 3), x)
        else:
            yield of("elementwise", function, x)
    for function in (
        lax.add,
        lax.sub,
        lax.mul,
        lax.div,
        lax.rem,
        lax.max,
        lax.min,
        lax.pow,
        lax.atan2,
        lax.nextafter,
        lax.complex,
        lax.igamma,
        lax.zeta,
    ):
        yield of("elementwise", function, x, x)
    for function in (
        lax.add,
        lax.sub,
        lax.mul,
        lax.div,
        lax.rem,
        lax.max,
        lax.min,
        lax.bitwise_and,
        lax.bitwise_or,
        lax.bitwise_xor,
        lax.shift_left,
        lax.shift_right_logical,
        lax.shift_right_arithmetic,
    ):
        yield of("elementwise", function, (x, I32), (x, I32))
    for function in (lax.bitwise_not, lax.population_count, lax.clz, lax.sign, lax.abs, lax.neg):
        yield of("elementwise", function, (x, I32))
    for function in (lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor):
        yield of("elementwise", function, (x, BOOL), (x, BOOL))
    yield of("elementwise", lax.bitwise_not, (x, BOOL))
    for function in (lax.real, lax.imag, lax.conj, lax.abs, lax.exp, lax.neg):
        yield of("elementwise", function, (x, C64))
    yield of("elementwise", lax.mul, (x, C64), (x, C64))
    yield of("elementwise", lax.add, (x, BF16), (x, BF16))
    yield of("elementwise", lambda p, a, b: lax.select(p, a, b), (x, BOOL), x, x)
    yield of("elementwise", lambda a, v, b: lax.clamp(a, v, b), x, x, x)


GROUPS: tuple[Callable[[], Iterator[Program]], ...] = (
    *(convolutions, windows, moves, indices, products, shapes, reductions, orders, elementwise),
)


def programs() -> Iterator[Program]:
    """All of them."""
    for group in GROUPS:
        yield from group()
