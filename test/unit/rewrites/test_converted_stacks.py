"""Stacks of which a loop only reads rows in a narrower type are converted before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.ir.boundary import main_function
from autoshard.ir.compile import compile_module
from autoshard.rewrites.layer_loops.narrow import convert_stacks
from autoshard.rewrites.micro_batches.inline import inline

LAYERS, WIDTH = 4, 8


def layer(h: Any, w: Any) -> tuple[Any, None]:
    return jnp.tanh(h @ w.astype(jnp.bfloat16)), None


def loss(body: Callable[..., Any], stack: Any, x: Any) -> Any:
    return jax.lax.scan(body, x.astype(jnp.bfloat16), stack)[0].sum().astype(jnp.float32)


def forward(stack: Any, x: Any) -> Any:
    return loss(layer, stack, x)


def checkpointed(stack: Any, x: Any) -> Any:
    """Gradients of layers that are computed again behind a barrier."""
    return jax.grad(loss, 1)(jax.checkpoint(layer), stack, x)


def read_whole(stack: Any, x: Any) -> Any:
    def body(h: Any, w: Any) -> tuple[Any, Any]:
        return layer(h, w)[0], w.sum()

    return jax.lax.scan(body, x.astype(jnp.bfloat16), stack)[1]


def widened(stack: Any, x: Any) -> Any:
    return jax.lax.scan(lambda h, w: (h @ w.astype(jnp.float32), None), x, stack)[0]


def converted(function: Callable[..., Any], dtype: Any = jnp.float32) -> tuple[Any, Any]:
    """The module as it is lowered, and with stacks converted."""
    types = ((LAYERS, WIDTH, WIDTH), dtype), ((2, WIDTH), jnp.float32)
    text = jax.jit(function).lower(*(jax.ShapeDtypeStruct(*it) for it in types)).as_text()
    before, after = (parse_bytes(text.encode(), new_context(), "step") for _ in range(2))
    with after.context, mlir.Location.unknown():
        inline(after)
        block = main_function(after).regions[0].blocks[0]
        convert_stacks([op.operation for op in block.operations])
    assert after.operation.verify()
    return before, after


def stacks_converted(module: Any) -> int:
    shape = f"{LAYERS}x{WIDTH}x{WIDTH}"
    said = f"(tensor<{shape}xf32>) -> tensor<{shape}xbf16>"
    return sum("convert" in line and said in line for line in str(module).splitlines())


@pytest.mark.parametrize("function", [forward, checkpointed])
def test_weights_are_converted_once_for_all_loops_bit_for_bit(
    function: Callable[..., Any],
) -> None:
    before, after = converted(function)
    assert (stacks_converted(before), stacks_converted(after)) == (0, 1)
    rng = np.random.default_rng(0)
    given = [
        rng.normal(size=shape).astype(np.float32) for shape in ((LAYERS, WIDTH, WIDTH), (2, WIDTH))
    ]
    device = jax.devices()[:1]
    for one, other in zip(
        *(compile_module(module, device).run(*given) for module in (before, after)), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("function", "dtype"),
    [(read_whole, jnp.float32), (widened, jnp.bfloat16)],
    ids=["read as it is as well", "wider"],
)
def test_other_stacks_stay(function: Callable[..., Any], dtype: Any) -> None:
    before, after = converted(function, dtype)
    with before.context, mlir.Location.unknown():
        inline(before)
    assert str(after) == str(before)
