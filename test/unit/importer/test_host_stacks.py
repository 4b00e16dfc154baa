"""What loops carry in the memory of the host."""

from __future__ import annotations

from autoshard.importer.host_stacks import host_stacks
from autoshard.ir import new_context, parse_bytes
from autoshard.ir.module import operations_of

_PROGRAM = """
func.func @main(%x: tensor<4xf32>, %n: tensor<i32>) -> tensor<8x4xf32> {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %i = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
  %other = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
  %stacks:3 = stablehlo.while(%k = %i, %there = %zeros, %here = %other)
      : tensor<i32>, tensor<8x4xf32>, tensor<8x4xf32>
   cond {{
    %more = stablehlo.compare LT, %k, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  }} do {{
    %y = stablehlo.tanh %x : tensor<4xf32>
    %moved = stablehlo.custom_call @annotate_device_placement(%y)
        {{has_side_effect = true,
         mhlo.frontend_attributes = {{_xla_buffer_placement = "{memory}"}}}}
        : (tensor<4xf32>) -> tensor<4xf32>
    %row = stablehlo.reshape %moved : (tensor<4xf32>) -> tensor<1x4xf32>
    %written = stablehlo.dynamic_update_slice %there, %row, %k, %i
        : (tensor<8x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<8x4xf32>
    %next = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %next, %written, %here : tensor<i32>, tensor<8x4xf32>, tensor<8x4xf32>
  }}
  return %stacks#1 : tensor<8x4xf32>
}}
"""


def test_a_stack_of_rows_on_the_host_is_there_from_its_zeros_on() -> None:
    module = parse_bytes(_PROGRAM.format(memory="pinned_host").encode(), new_context(), "loop")
    operations = operations_of(module.operation)
    (loop,) = (op for op in operations if op.name == "stablehlo.while")
    stack, zeros = loop.regions[1].blocks[0].arguments[1], loop.operands[1]
    assert host_stacks(module, operations) == {stack, zeros}


def test_rows_on_the_device_make_no_stack_on_the_host() -> None:
    module = parse_bytes(_PROGRAM.format(memory="device").encode(), new_context(), "loop")
    assert not host_stacks(module, operations_of(module.operation))
