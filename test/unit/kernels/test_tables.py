"""What is in a kernel's tables is found where the program says it, and counts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from autoshard.importer.work import work_of
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.ir.module import operations_of
from autoshard.kernels.mosaic import is_tpu_kernel
from autoshard.kernels.tables import contents_of_parts, table_contents

CONSTANT = "%c = stablehlo.constant dense<[[0, 1], [2, 3]]> : tensor<2x2xi8>"
FUNCTION = f"""
func.func private @tables() -> tensor<2x2xi8> {{
  {CONSTANT}
  return %c : tensor<2x2xi8>
}}"""
TABLE = "tensor<2x2xi8>"
SAYS = {
    "what a function gives back": f"%0 = func.call @tables() : () -> {TABLE}",
    "a constraint": f"{CONSTANT}\n %0 = sdy.sharding_constraint %c <@mesh, [{{}}, {{}}]> : {TABLE}",
    "a manual computation": f"""{CONSTANT}
      %0 = sdy.manual_computation(%c) in_shardings=[<@mesh, [{{}}, {{}}]>]
          out_shardings=[<@mesh, [{{}}, {{}}]>] manual_axes={{"x"}} (%t: {TABLE}) {{
        %inside = stablehlo.reshape %t : ({TABLE}) -> {TABLE}
        sdy.return %inside : {TABLE}
      }} : ({TABLE}) -> {TABLE}""",
    "a loop": f"""{CONSTANT}
      %no = stablehlo.constant dense<false> : tensor<i1>
      %0 = stablehlo.while(%t = %c) : {TABLE} cond {{
        stablehlo.return %no : tensor<i1>
      }} do {{
        %same = sdy.sharding_constraint %t <@mesh, [{{}}, {{}}]> : {TABLE}
        stablehlo.return %same : {TABLE}
      }}""",
}


@pytest.mark.parametrize("says", SAYS)
def test_a_table_is_followed_through(says: str) -> None:
    text = f"""sdy.mesh @mesh = <["x"=2]>{FUNCTION}
    func.func public @main() -> {TABLE} {{
      {SAYS[says]}
      %last = stablehlo.reshape %0 : ({TABLE}) -> {TABLE}
      return %last : {TABLE}
    }}"""
    module = parse_bytes(text.encode(), new_context(), "tables")
    with module.context:
        reshape = [op for op in operations_of(module.operation) if op.name == "stablehlo.reshape"]
        value = reshape[0].operands[0] if "manual" in says else reshape[-1].operands[0]
        np.testing.assert_array_equal(table_contents(value), [[0, 1], [2, 3]])


PART = """sdy.mesh @mesh = <["x"=2]>
    func.func public @main() -> tensor<2x2xi8> {
      %c = stablehlo.constant dense<[[0, 1], [2, 3]]> : tensor<2x2xi8>
      %0 = sdy.manual_computation(%c) in_shardings=[<@mesh, [{"x"}, {}]>]
          out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%t: tensor<1x2xi8>) {
        %zero = stablehlo.constant dense<0> : tensor<i8>
        %padded = stablehlo.pad %t, %zero, low = [0, 0], high = [1, 0], interior = [0, 0]
          : (tensor<1x2xi8>, tensor<i8>) -> tensor<2x2xi8>
        %inside = stablehlo.reshape %padded : (tensor<2x2xi8>) -> tensor<2x2xi8>
        %back = stablehlo.slice %inside [0:1, 0:2] : (tensor<2x2xi8>) -> tensor<1x2xi8>
        sdy.return %back : tensor<1x2xi8>
      } : (tensor<2x2xi8>) -> tensor<2x2xi8>
      return %0 : tensor<2x2xi8>
    }"""


def test_parts_of_a_table_are_those_of_the_devices() -> None:
    module = parse_bytes(PART.encode(), new_context(), "tables")
    with module.context:
        ops = {op.name: op for op in operations_of(module.operation)}
        value = ops["stablehlo.reshape"].operands[0]
        parts = contents_of_parts(value)
        assert parts is not None
        np.testing.assert_array_equal(parts, [[[0, 1], [0, 0]], [[2, 3], [0, 0]]])
        assert table_contents(value) is None


def reading(x: Any, table: Any) -> Any:
    """Place ``i`` of four reads the block that ``table[i]`` says."""

    def body(_: Any, block: Any, out: Any) -> None:
        out[...] = block[...]

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(4,),
        in_specs=[pl.BlockSpec((8, 128), lambda i, table: (table[i], 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, table: (i, 0)),
    )
    return pl.pallas_call(body, grid_spec=spec, out_shape=jax.ShapeDtypeStruct((32, 128), x.dtype))(
        table, x
    )


def kernel_in(fn: Any, *args: Any) -> tuple[mlir.Module, mlir.Operation]:
    device = jax.sharding.AbstractDevice("TPU v5 lite", 1, "tpu")
    mesh = jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        text = jax.jit(fn).trace(*args).lower(lowering_platforms=("tpu",)).as_text()
    module = parse_bytes(text.encode(), new_context())
    (op,) = (op for op in operations_of(module.operation) if is_tpu_kernel(op))
    return module, op


X = jax.ShapeDtypeStruct((32, 128), jnp.float32)
BLOCK = 8 * 128 * 4


@pytest.mark.parametrize(
    ("table", "moves"), [([0, 0, 1, 1], 2), ([2, 2, 2, 2], 1), ([0, 1, 0, 1], 4)]
)
def test_a_block_that_stays_is_not_read_again(table: list[int], moves: int) -> None:
    module, op = kernel_in(lambda x: reading(x, jnp.array(table, jnp.int32)), X)
    with module.context:
        work = work_of(op)
    assert work.operand_bytes[1] == moves * BLOCK
    assert work.result_bytes == (4 * BLOCK,)


def test_where_a_table_is_not_known_every_place_reads() -> None:
    module, op = kernel_in(reading, X, jax.ShapeDtypeStruct((4,), jnp.int32))
    with module.context:
        assert work_of(op).operand_bytes[1] == 4 * BLOCK
