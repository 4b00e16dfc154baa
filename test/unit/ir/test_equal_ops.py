"""Equal ops are joined before anything is planned."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from autoshard.ir import new_context, parse_bytes
from autoshard.ir.equal_ops import join_equal_ops
from autoshard.ir.lowering import lower
from autoshard.ir.module import operations_of


def joined(ops: str, results: str = "%1, %2") -> list[str]:
    types = ", ".join(["tensor<8x8xf32>"] * (results.count(",") + 1))
    text = f"""
    sdy.mesh @m = <["a"=4]>
    func.func public @main(%x: tensor<8x8xf32>) -> ({types}) {{ {ops} return {results} : {types} }}
    """
    module = parse_bytes(text.encode(), new_context(), "test.mlir")
    join_equal_ops(module)
    assert module.operation.verify()
    assert "autoshard.block" not in str(module)
    names = [op.name.removeprefix("stablehlo.") for op in operations_of(module.operation)]
    return [name for name in names if name not in ("builtin.module", "func.func", "func.return")]


def test_equal_ops_are_one_and_those_that_nobody_reads_go() -> None:
    ops = """
      %0 = stablehlo.sine %x : tensor<8x8xf32>
      %1 = stablehlo.tanh %x : tensor<8x8xf32>
      %2 = stablehlo.tanh %x : tensor<8x8xf32>
    """
    assert joined(ops) == ["sdy.mesh", "tanh"]


@pytest.mark.parametrize(
    "ops",
    [
        """%0 = stablehlo.optimization_barrier %x : tensor<8x8xf32>
           %1 = stablehlo.tanh %x : tensor<8x8xf32>
           %2 = stablehlo.tanh %0 : tensor<8x8xf32>""",
        """%1 = stablehlo.tanh %x {autoshard.pin = "[{a}, {}]"} : tensor<8x8xf32>
           %2 = stablehlo.tanh %x {autoshard.pin = "[{}, {a}]"} : tensor<8x8xf32>""",
        """%1 = stablehlo.custom_call @f(%x) {has_side_effect = true}
               : (tensor<8x8xf32>) -> tensor<8x8xf32>
           %2 = stablehlo.custom_call @f(%x) {has_side_effect = true}
               : (tensor<8x8xf32>) -> tensor<8x8xf32>""",
    ],
    ids=["computed again", "cut otherwise", "effects"],
)
def test_what_is_meant_to_be_two_stays_two(ops: str) -> None:
    names = joined(ops)
    assert names.count("tanh") + names.count("custom_call") == 2


def test_bodies_make_what_they_read() -> None:
    """XLA would have a loop carry what is made around it, and lets no reducer read it."""
    ops = """
      %c = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
      %i = stablehlo.constant dense<0> : tensor<i32>
      %2:2 = stablehlo.while(%j = %i, %w = %0) : tensor<i32>, tensor<8x8xf32>
      cond {
        %n = stablehlo.constant dense<4> : tensor<i32>
        %p = stablehlo.compare LT, %j, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %p : tensor<i1>
      } do {
        %d = stablehlo.constant dense<0.0> : tensor<f32>
        %e = stablehlo.broadcast_in_dim %d, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
        %f = stablehlo.constant dense<0.0> : tensor<f32>
        %g = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
        %h = stablehlo.add %e, %g : tensor<8x8xf32>
        %k = stablehlo.add %w, %h : tensor<8x8xf32>
        %one = stablehlo.constant dense<1> : tensor<i32>
        %l = stablehlo.add %j, %one : tensor<i32>
        stablehlo.return %l, %k : tensor<i32>, tensor<8x8xf32>
      }
    """
    names = joined(ops, "%0, %2#1")
    assert names.count("broadcast_in_dim") == 2
    body = names[names.index("while") :]
    assert body.count("constant") == 3
    assert body.count("broadcast_in_dim") == 1


def test_a_lowered_program_has_equal_ops_once() -> None:
    def step(x: jax.Array) -> jax.Array:
        return jnp.where(x > 0, x, 0.0) @ jnp.where(x > 0, x, 0.0)

    x = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    program = lower(jax.jit(step), (x,), {}, None)
    text = str(parse_bytes(program.bytecode, new_context(), "step"))
    assert text.count("stablehlo.compare") == 1
