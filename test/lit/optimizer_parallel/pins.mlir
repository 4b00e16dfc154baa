// RUN: autoshard-opt --autoshard-optimizer-parallel='level=3 threshold-kb=0' --split-input-file %s | filecheck %s

// A state that the user pinned stays as it is; the parameter is spread.
// CHECK-LABEL: func.func public @main
// CHECK-SAME:  %arg0: tensor<64x32xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"
// CHECK-SAME:  %arg1: tensor<64x32xf32> {autoshard.pin = "[{}, {}]", mhlo.sharding = "{replicated}"
module attributes {autoshard.mesh = "dp=4"} {
func.func public @main(
    %w: tensor<64x32xf32> {tf.aliasing_output = 0 : i32, mhlo.sharding = "{replicated}"},
    %m: tensor<64x32xf32> {tf.aliasing_output = 1 : i32, autoshard.pin = "[{}, {}]", mhlo.sharding = "{replicated}"},
    %x: tensor<16x64xf32> {mhlo.sharding = "{replicated}"})
    -> (tensor<64x32xf32> {mhlo.sharding = "{replicated}"}, tensor<64x32xf32> {mhlo.sharding = "{replicated}"}) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"}
      : (tensor<16x64xf32>, tensor<64x32xf32>) -> tensor<16x32xf32>
  %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0]
      {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"}
      : (tensor<16x64xf32>, tensor<16x32xf32>) -> tensor<64x32xf32>
  %new = stablehlo.add %m, %g {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"} : tensor<64x32xf32>
  %moved = stablehlo.subtract %w, %new {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"} : tensor<64x32xf32>
  return %moved, %new : tensor<64x32xf32>, tensor<64x32xf32>
}
}

// -----

// A pinned parameter keeps its place, its state is spread.
// CHECK-LABEL: func.func public @main
// CHECK-SAME:  %arg0: tensor<64x32xf32> {autoshard.pin = "[{}, {}]", mhlo.sharding = "{replicated}"
// CHECK-SAME:  %arg1: tensor<64x32xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"
module attributes {autoshard.mesh = "dp=4"} {
func.func public @main(
    %w: tensor<64x32xf32> {tf.aliasing_output = 0 : i32, autoshard.pin = "[{}, {}]", mhlo.sharding = "{replicated}"},
    %m: tensor<64x32xf32> {tf.aliasing_output = 1 : i32, mhlo.sharding = "{replicated}"},
    %x: tensor<16x64xf32> {mhlo.sharding = "{replicated}"})
    -> (tensor<64x32xf32> {mhlo.sharding = "{replicated}"}, tensor<64x32xf32> {mhlo.sharding = "{replicated}"}) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"}
      : (tensor<16x64xf32>, tensor<64x32xf32>) -> tensor<16x32xf32>
  %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0]
      {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"}
      : (tensor<16x64xf32>, tensor<16x32xf32>) -> tensor<64x32xf32>
  %new = stablehlo.add %m, %g {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"} : tensor<64x32xf32>
  %moved = stablehlo.subtract %w, %new {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"} : tensor<64x32xf32>
  return %moved, %new : tensor<64x32xf32>, tensor<64x32xf32>
}
}
