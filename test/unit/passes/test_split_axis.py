"""Splitting an axis of a planned module: new names, the same plan."""

from __future__ import annotations

import pytest

from autoshard.ir import new_context, parse_bytes, print_module
from autoshard.passes.split_axis import split_axis
from autoshard.sharding import Mesh

TEXT = """
module attributes {autoshard.mesh = "dp=8,tp=2"} {
func.func public @main(%x: tensor<16x8xf32> {autoshard.pin = "[{dp, ?}, {}]"},
    %y: tensor<16x8xf32> {autoshard.pin = "(4, ?)"}) -> tensor<16x8xf32> {
  %a = stablehlo.add %x, %y {autoshard.pin = "[{tp, dp}, {}]",
      autoshard.strategy = "[{dp}, {tp}], [{dp}, {tp}] -> [{dp}, {tp}]",
      mhlo.sharding = "{devices=[8,2]<=[16]}"} : tensor<16x8xf32>
  return %a : tensor<16x8xf32>
}
}
"""


def test_every_text_names_both_parts() -> None:
    module = parse_bytes(TEXT.encode(), new_context())
    with module.context:
        split_axis(module, Mesh.parse("dp=8,tp=2"), "dp", 4)
    text = print_module(module).decode()
    for wanted in (
        'autoshard.mesh = "dp=2,dp_part=4,tp=2"',
        'autoshard.pin = "[{dp, dp_part, ?}, {}]"',
        'autoshard.pin = "(4, ?)"',
        'autoshard.pin = "[{tp, dp, dp_part}, {}]"',
        'autoshard.strategy = "[{dp, dp_part}, {tp}], [{dp, dp_part}, {tp}] -> '
        '[{dp, dp_part}, {tp}]"',
        'mhlo.sharding = "{devices=[8,2]<=[16]}"',
    ):
        assert wanted in text


@pytest.mark.parametrize("inner", [2, 4])
def test_a_name_that_is_taken_is_made_longer(inner: int) -> None:
    module = parse_bytes(b"module {}", new_context())
    with module.context:
        split_axis(module, Mesh.parse("dp=8,dp_part=2"), "dp", inner)
    assert f"dp={8 // inner},dp_part_part={inner},dp_part=2" in print_module(module).decode()
