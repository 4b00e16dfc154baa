"""Slices and updates at known places become static, and mean what they did."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.ir.module import operations_of
from autoshard.rewrites.known_places import known_places_as_static

SHAPE = 5, 6
sizes = st.tuples(*(st.integers(1, size) for size in SHAPE))
places = st.tuples(*(st.integers(-3, size + 3) for size in SHAPE))


def names_of(text: str) -> tuple[mlir.Module, list[str]]:
    """A module with what is static in it, and its ops."""
    module = parse_bytes(text.encode(), new_context())
    with module.context:
        known_places_as_static(operations_of(module.operation))
        return module, [op.name.partition(".")[2] for op in operations_of(module.operation)]


def program(
    part: tuple[int, ...], starts: tuple[int, ...], filler: str, *, is_slice: bool = False
) -> str:
    whole = "x".join(map(str, SHAPE))
    some = "x".join(map(str, part))
    at = "\n".join(
        f"%p{k} = stablehlo.constant dense<{start}> : tensor<i32>" for k, start in enumerate(starts)
    )
    if is_slice:
        op = (
            f"%r = stablehlo.dynamic_slice %a, %p0, %p1, sizes = [{part[0]}, {part[1]}]"
            f" : (tensor<{whole}xf32>, tensor<i32>, tensor<i32>) -> tensor<{some}xf32>"
        )
        of, made = whole, some
    else:
        op = (
            f"{filler}\n%r = stablehlo.dynamic_update_slice %f, %a, %p0, %p1"
            f" : (tensor<{whole}xf32>, tensor<{some}xf32>, tensor<i32>, tensor<i32>)"
            f" -> tensor<{whole}xf32>"
        )
        of, made = some, whole
    return (
        f"func.func public @main(%a: tensor<{of}xf32>) -> tensor<{made}xf32> {{\n{at}\n{op}\n"
        f"return %r : tensor<{made}xf32>\n}}"
    )


SPLAT = "%f = stablehlo.constant dense<2.5> : tensor<5x6xf32>"
BROADCAST = (
    "%s = stablehlo.constant dense<2.5> : tensor<f32>\n"
    "%f = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<5x6xf32>"
)


def run(module: mlir.Module, x: np.ndarray) -> np.ndarray:
    """What a program of ``stablehlo.pad`` and ``stablehlo.slice`` makes."""
    for op in operations_of(module.operation):
        if op.name == "stablehlo.pad":
            low, high = (
                list(mlir.DenseI64ArrayAttr(op.attributes[f"edge_padding_{side}"]))
                for side in ("low", "high")
            )
            return np.pad(x, list(zip(low, high, strict=True)), constant_values=2.5)
        if op.name == "stablehlo.slice":
            first, last = (
                list(mlir.DenseI64ArrayAttr(op.attributes[f"{side}_indices"]))
                for side in ("start", "limit")
            )
            return x[tuple(map(slice, first, last))]
    raise AssertionError("nothing is static")


@given(sizes, places, st.sampled_from([SPLAT, BROADCAST]))
def test_an_update_of_constants_is_a_pad(
    part: tuple[int, ...], starts: tuple[int, ...], filler: str
) -> None:
    module, names = names_of(program(part, starts, filler))
    assert "dynamic_update_slice" not in names
    assert module.operation.verify()
    x = np.arange(np.prod(part), dtype=np.float32).reshape(part)
    expected = jax.lax.dynamic_update_slice(
        jnp.full(SHAPE, 2.5), x, [max(start, 0) for start in starts]
    )
    assert np.array_equal(run(module, x), expected)


@given(sizes, places)
def test_a_slice_is_static(part: tuple[int, ...], starts: tuple[int, ...]) -> None:
    module, names = names_of(program(part, starts, "", is_slice=True))
    assert "dynamic_slice" not in names
    assert module.operation.verify()
    x = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
    expected = jax.lax.dynamic_slice(x, [max(start, 0) for start in starts], part)
    assert np.array_equal(run(module, x), expected)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%p0 = stablehlo.constant dense<0>", "%p0 = stablehlo.add %p1, %p1"),  # a place
        ("%s = stablehlo.constant dense<2.5>", "%s = stablehlo.add %t, %t"),  # what is updated
    ],
)
def test_what_is_not_known_stays(old: str, new: str) -> None:
    text = program((2, 3), (0, 1), BROADCAST)
    constants = (
        "\n%p1 = stablehlo.constant dense<1> : tensor<i32>"
        "\n%t = stablehlo.constant dense<1.0> : tensor<f32>\n"
    )
    text = text.replace("%p1 = stablehlo.constant dense<1> : tensor<i32>\n", "")
    text = text.replace("{\n", "{" + constants, 1).replace(old, new)
    assert "dynamic_update_slice" in names_of(text)[1]
