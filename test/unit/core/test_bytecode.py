"""What the core reads of MLIR's bytecode, against what MLIR's own bindings say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard import _core
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.ir.module import operations_of, structure_of


def in_loops(x: jax.Array) -> jax.Array:
    def inner(carried: jax.Array, _: Any) -> tuple[jax.Array, jax.Array]:
        scale = jnp.sum(x, 0)  # read from outside of the loop

        return jnp.where(carried > 0, carried * scale, 0.0), jnp.max(carried, 0)

    carried, stacked = jax.lax.scan(inner, x, None, length=3)
    return carried + stacked.sum()


def in_branches(x: jax.Array) -> jax.Array:
    y = jnp.sin(x)
    return jax.lax.switch(
        jnp.int32(x[0, 0]), [lambda z: z + y, lambda z: z @ y, lambda z: jnp.sort(z, 1)], x
    )


def with_calls_and_several_results(x: jax.Array) -> Any:
    values, places = jax.lax.top_k(jax.nn.silu(x), 2)
    keys, carried = jax.lax.sort((x, x + 1), num_keys=1)
    return values, places, jax.nn.silu(keys) + carried, jax.grad(lambda z: jnp.tanh(z).sum())(x)


def lowered(function: Callable[..., Any]) -> mlir.Module:
    return jax.jit(function).lower(jax.ShapeDtypeStruct((8, 8), jnp.float32)).compiler_ir()


MOST_OPS_OF_A_REDUCER = 8
"""As the core has it: what is in them tells ops apart."""

BRANCHING = """
func.func private @declared(tensor<4xf32>) -> tensor<4xf32>
func.func @main(%x: tensor<4xf32>, %go: i1) -> tensor<4xf32> {
  cf.cond_br %go, ^bb1(%x : tensor<4xf32>), ^bb2
^bb1(%y: tensor<4xf32>):
  %0 = stablehlo.add %y, %x : tensor<4xf32>
  cf.br ^bb2
^bb2:
  return %x : tensor<4xf32>
}
"""


def branching() -> mlir.Module:
    context = new_context()
    return parse_bytes(BRANCHING.encode(), context, "test.mlir")


def check(module: mlir.Module) -> None:
    ops = operations_of(module.operation)
    read = _core.ProgramBuilder(structure_of(module))
    assert read.num_module_ops == len(ops)
    numbers: dict[mlir.Value, int] = {}
    for number, op in enumerate(ops):
        numbers |= zip(op.results, read.results(number), strict=True)
        blocks = read.blocks(number)
        for region, found in zip(op.regions, blocks, strict=True):
            first, last, arguments = found.first_op, found.last_op, found.arguments
            if not len(region.blocks):
                assert (first, last, arguments) == (0, -1, [])
                continue
            block = region.blocks[0]
            numbers |= zip(block.arguments, arguments, strict=True)
            inside = [each.operation for each in block.operations]
            assert (ops[first], ops[last]) == (inside[0], inside[-1])
            for each in inside:
                assert ops[first] == each
                first = read.end(first)
            assert first == read.end(last)
    assert len(set(numbers.values())) == len(numbers)
    classes: dict[int, object] = {}
    for number, op in enumerate(ops):
        known = [numbers.get(value, -1) for value in op.operands]
        assert all(k in (-1, r) for k, r in zip(known, read.operands(number), strict=True))
        said = {str(name): str(op.attributes[name]) for name in _names(op)}
        types = [str(value.type) for value in (*op.operands, *op.results)]
        alike = (op.name, said, types, [_of_small(region) for region in op.regions])
        assert classes.setdefault(read.class_of(number), alike) == alike
    assert len({str(alike) for alike in classes.values()}) == len(classes)


def _of_small(region: mlir.Region) -> list[str] | int:
    """What a reducer does; of larger regions the number of ops."""
    inside = [each.operation.name for each in region.blocks[0].operations] if region.blocks else []
    return inside if len(inside) <= MOST_OPS_OF_A_REDUCER else len(inside)


def _names(op: mlir.Operation) -> list[str]:
    """Names of the attributes; jaxlib 0.10.2 gives them with their values."""
    return [each if isinstance(each, str) else each.name for each in op.attributes]


@pytest.mark.parametrize("function", [in_loops, in_branches, with_calls_and_several_results])
def test_ops_values_and_blocks_are_those_of_the_module(function: Callable[..., Any]) -> None:
    check(lowered(function))


def test_blocks_behind_the_first_one_and_functions_without_body_are_read() -> None:
    check(branching())


def test_equal_ops_are_one_class_wherever_they_are() -> None:
    module = lowered(lambda x: jnp.sin(jnp.sin(x)) + jnp.sin(x.astype(jnp.bfloat16)))
    read = _core.ProgramBuilder(structure_of(module))
    sines = [
        read.class_of(number)
        for number, op in enumerate(operations_of(module.operation))
        if op.name == "stablehlo.sine"
    ]
    assert len(sines) == 3
    assert len(set(sines)) == 2  # of float32 and of bfloat16


def test_what_is_no_bytecode_is_refused() -> None:
    with pytest.raises(RuntimeError, match="does not start as bytecode does"):
        _core.ProgramBuilder(b"module {}")


def test_another_version_is_refused() -> None:
    data = structure_of(branching())
    with pytest.raises(RuntimeError, match="version 5 of the format, not 6"):
        _core.ProgramBuilder(data[:4] + b"\x0b" + data[5:])


def test_bytecode_that_ends_anywhere_is_refused() -> None:
    data = structure_of(lowered(in_loops))
    whole = _core.ProgramBuilder(data).num_module_ops
    for length in range(len(data)):
        try:
            found = _core.ProgramBuilder(data[:length]).num_module_ops
        except RuntimeError as error:
            assert str(error).startswith("MLIR bytecode: ")  # noqa: PT017
        else:
            assert found == whole  # nothing but sections behind that of the ops is missing
