"""Attributes of ops are told apart, also complex constants, which have no class of Python."""

from __future__ import annotations

import pytest

from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.ir.attributes import attribute_keys, constant_integers


def _module(*elements: str) -> mlir.Module:
    """Who reads its ops keeps it: they end with it."""
    lines = "\n".join(f"%{at} = stablehlo.constant {text}" for at, text in enumerate(elements))
    text = f"func.func @main() {{\n{lines}\nreturn\n}}"
    return parse_bytes(text.encode(), new_context())


def _constants(module: mlir.Module) -> list[mlir.Operation]:
    block = module.body.operations[0].operation.regions[0].blocks[0]
    return [op.operation for op in list(block.operations)[:-1]]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("dense<1.0> : tensor<2xf32>", "dense<2.0> : tensor<2xf32>"),
        ("dense<(1.0, 0.0)> : tensor<complex<f32>>", "dense<(1.0, 2.0)> : tensor<complex<f32>>"),
        ("dense<(1.0, 0.0)> : tensor<complex<f32>>", "dense<(1.0, 0.0)> : tensor<complex<f64>>"),
    ],
)
def test_keys_are_equal_where_attributes_are(first: str, second: str) -> None:
    module = _module(first, first, second)
    one, same, other = map(attribute_keys, _constants(module))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other


def test_keys_leave_out_names_that_do_not_count() -> None:
    module = _module('{autoshard.pin = "x"} dense<1> : tensor<i32>', "dense<1> : tensor<i32>")
    marked, plain = _constants(module)
    assert attribute_keys(marked) != attribute_keys(plain)
    assert attribute_keys(marked, but={"autoshard.pin"}) == attribute_keys(plain)


def test_only_integers_are_read_from_a_constant() -> None:
    texts = ("dense<[3, 4]> : tensor<2xi32>", "dense<3.0> : tensor<f32>")
    module = _module(*texts, "dense<(1.0, 0.0)> : tensor<complex<f32>>")
    integers, reals, numbers = _constants(module)
    found = constant_integers(integers)
    assert found is not None
    assert [found[0], found[1]] == [3, 4]
    assert constant_integers(reals) is None
    assert constant_integers(numbers) is None
