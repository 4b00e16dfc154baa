"""Functions that ops name."""

from autoshard.ir import new_context, parse_bytes
from autoshard.ir.module import functions_of, operations_of
from autoshard.ir.symbols import functions_named, functions_reached

TEXT = b"""
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = call @layer(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = call @layer(%0) : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
func.func private @layer(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.composite "my.square" %x {decomposition = @square}
      : (tensor<4xf32>) -> tensor<4xf32>
  %1 = stablehlo.custom_call @solve(%0) {called_computations = [@step, @square]}
      : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
func.func private @square(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.multiply %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @step(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
func.func private @other(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
"""


def test_calls_composites_and_custom_calls_name_functions():
    module = parse_bytes(TEXT, new_context())
    named = [functions_named(op) for op in operations_of(module.operation)]
    assert [names for names in named if names] == [
        ["layer"],
        ["layer"],
        ["square"],
        ["step", "square"],
    ]


def test_what_is_called_from_a_function_is_reached_once():
    module = parse_bytes(TEXT, new_context())
    functions = functions_of(module)
    assert functions_reached(functions, "main") == ["main", "layer", "square", "step"]
    assert functions_reached(functions, "other") == ["other"]
