"""Which arrays count along a dim."""

from __future__ import annotations

import pytest

from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.ir.boundary import main_function
from autoshard.rewrites.counted_indices import counted_dim


def counted(lines: str, type_: str) -> int | None:
    """The dim along which ``%x`` counts."""
    text = f"func.func @main(%a: tensor<4xi32>) -> {type_} {{\n{lines}\nreturn %x : {type_}\n}}"
    module = parse_bytes(text.encode(), new_context())
    *_, end = main_function(module).regions[0].blocks[0].operations
    return counted_dim(mlir.Value(end.operation.operands[0]))


IOTA = "%i = stablehlo.iota dim = 1 : tensor<2x4xi32>\n"


@pytest.mark.parametrize(
    ("lines", "type_", "dim"),
    [
        ("%x = stablehlo.iota dim = 0 : tensor<4x3xi32>", "tensor<4x3xi32>", 0),
        ("%x = stablehlo.iota dim = 0 : tensor<200x3xi8>", "tensor<200x3xi8>", None),
        ("%x = stablehlo.iota dim = 0 : tensor<4xf32>", "tensor<4xf32>", None),
        (
            IOTA + "%x = stablehlo.broadcast_in_dim %i, dims = [0, 2]"
            " : (tensor<2x4xi32>) -> tensor<2x5x4xi32>",
            "tensor<2x5x4xi32>",
            2,
        ),
        (
            IOTA + "%x = stablehlo.reshape %i : (tensor<2x4xi32>) -> tensor<2x1x4xi32>",
            "tensor<2x1x4xi32>",
            2,
        ),
        (
            IOTA + "%x = stablehlo.reshape %i : (tensor<2x4xi32>) -> tensor<4x2xi32>",
            "tensor<4x2xi32>",
            None,
        ),
        (
            IOTA + "%x = stablehlo.convert %i : (tensor<2x4xi32>) -> tensor<2x4xi8>",
            "tensor<2x4xi8>",
            1,
        ),
        (IOTA + "%x = stablehlo.add %i, %i : tensor<2x4xi32>", "tensor<2x4xi32>", None),
        (
            "%x = stablehlo.broadcast_in_dim %a, dims = [0] : (tensor<4xi32>) -> tensor<4x2xi32>",
            "tensor<4x2xi32>",
            None,
        ),
    ],
)
def test_what_counts_is_known(lines: str, type_: str, dim: int | None) -> None:
    assert counted(lines, type_) == dim
