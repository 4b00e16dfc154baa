"""Gradients of expert weights, which are sums over tokens of one product for each expert."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import autoshard
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.passes.pipeline import run_passes

EXPERTS, TOKENS, WIDTH, HIDDEN = 8, 32, 16, 24
OPERAND = "{devices=[2,4,1]<=[8]}"
ALL = "{devices=[8,1,1]<=[8]}"
TEXT = """
module attributes {{autoshard.mesh = "dp=2,tp=4"}} {{
  func.func @main(%x: tensor<8x32x16xf32> {{mhlo.sharding = "{operand}"}},
                  %g: tensor<8x32x24xf32> {{mhlo.sharding = "{operand}"}})
      -> (tensor<{shape}xf32> {{mhlo.sharding = "{all}"}}) {{
    %0 = stablehlo.dot_general %x, %g, batching_dims = [0] x [0], contracting_dims = [1] x [1]
        {{mhlo.sharding = "{all}", autoshard.strategy =
          "[{{dp}}, {{tp}}, {{}}], [{{dp}}, {{tp}}, {{}}] -> [{{dp, tp}}, {{}}, {{}}]"}}
        : (tensor<8x32x16xf32>, tensor<8x32x24xf32>) -> tensor<8x16x24xf32>
    {view}
  }}
}}
"""
TRANSPOSED = f"""
    %1 = stablehlo.transpose %0, dims = [0, 2, 1] {{mhlo.sharding = "{ALL}",
        autoshard.strategy = "[{{dp, tp}}, {{}}, {{}}] -> [{{dp, tp}}, {{}}, {{}}]"}}
        : (tensor<8x16x24xf32>) -> tensor<8x24x16xf32>
    return %1 : tensor<8x24x16xf32>"""
AS_IT_IS = "return %0 : tensor<8x16x24xf32>"


def exported(view: str, shape: str) -> mlir.Module:
    text = TEXT.format(operand=OPERAND, all=ALL, view=view, shape=shape)
    module = parse_bytes(text.encode(), new_context())
    run_passes(module, ["autoshard-export-shardy"])
    return module


@pytest.mark.parametrize(
    ("view", "shape", "held"),
    [(AS_IT_IS, "8x16x24", "dot_general"), (TRANSPOSED, "8x24x16", "transpose")],
    ids=["as it is", "transposed"],
)
def test_a_sum_is_held_whole_before_it_is_scattered(view: str, shape: str, held: str) -> None:
    lines = [line.strip() for line in str(exported(view, shape)).splitlines()]
    at = next(number for number, line in enumerate(lines) if f"stablehlo.{held}" in line)
    assert '[{"dp"}, {}, {}]' in lines[at + 1]
    assert '[{"dp", "tp"}, {}, {}]' in lines[at + 2]


def products(x: jax.Array, g: jax.Array) -> jax.Array:
    return jnp.einsum("etd,eth->ehd", x, g)


def test_nothing_is_gathered_and_the_numbers_are_the_same() -> None:
    layout = autoshard.Layout((2, 4), ("dp", "tp"))
    cuts = layout("dp", "tp", "None")
    marked = autoshard.shard(products, (cuts, cuts), layout(("dp", "tp"), "None", "None"))
    keys = jax.random.split(jax.random.key(0))
    x = jax.random.randint(keys[0], (EXPERTS, TOKENS, WIDTH), -8, 8).astype(jnp.float32)
    g = jax.random.randint(keys[1], (EXPERTS, TOKENS, HIDDEN), -8, 8).astype(jnp.float32)
    step = autoshard.jit(marked, mesh="dp=2,tp=4")
    np.testing.assert_array_equal(step(x, g), products(x, g))
    text = step.lower(x, g).compile().as_text()
    assert not re.search(r"all-gather(-start)?\(", text)
