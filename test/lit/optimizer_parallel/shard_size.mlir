// RUN: autoshard-opt --autoshard-optimizer-parallel='threshold-kb=0 shard-size=2' --split-input-file %s | filecheck %s

// Of 8 devices 2 share a copy, those of the inner axis; there are 4 copies.
// CHECK-LABEL: func.func public @main
// CHECK-SAME:  %arg1: tensor<64x32xf32> {mhlo.sharding = "{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}"
module attributes {autoshard.mesh = "dp=4,sp=2"} {
func.func public @main(
    %w: tensor<64x32xf32> {tf.aliasing_output = 0 : i32, mhlo.sharding = "{replicated}"},
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

// -----

// No axes have 2 devices together: dp is split in two, in strategies too, and its inner half shares.
// CHECK:       module attributes {autoshard.mesh = "dp=2,dp_part=2"
// CHECK-LABEL: func.func public @main
// CHECK-SAME:  %arg1: tensor<64x32xf32> {mhlo.sharding = "{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}"
// CHECK:       stablehlo.add
// CHECK-SAME:  autoshard.strategy = "[{dp_part}, {}], [{dp_part}, {}] -> [{dp_part}, {}]"
module attributes {autoshard.mesh = "dp=4"} {
func.func public @main(
    %w: tensor<64x32xf32> {tf.aliasing_output = 0 : i32, mhlo.sharding = "{replicated}"},
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
