// RUN: autoshard-opt --autoshard-optimizer-parallel='threshold-kb=0' --split-input-file %s | filecheck %s

// Dim 0 of size 6 is not divided by 4 devices, dim 1 of size 32 is.
// CHECK-LABEL: func.func public @main
// CHECK-SAME:  %arg1: tensor<6x32xf32> {mhlo.sharding = "{devices=[1,4]<=[4]}"
module attributes {autoshard.mesh = "dp=4"} {
func.func public @main(
    %w: tensor<6x32xf32> {tf.aliasing_output = 0 : i32, mhlo.sharding = "{replicated}"},
    %m: tensor<6x32xf32> {tf.aliasing_output = 1 : i32, mhlo.sharding = "{replicated}"},
    %x: tensor<16x6xf32> {mhlo.sharding = "{replicated}"})
    -> (tensor<6x32xf32> {mhlo.sharding = "{replicated}"}, tensor<6x32xf32> {mhlo.sharding = "{replicated}"}) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"}
      : (tensor<16x6xf32>, tensor<6x32xf32>) -> tensor<16x32xf32>
  %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0]
      {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"}
      : (tensor<16x6xf32>, tensor<16x32xf32>) -> tensor<6x32xf32>
  %new = stablehlo.add %m, %g {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"} : tensor<6x32xf32>
  %moved = stablehlo.subtract %w, %new {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"} : tensor<6x32xf32>
  return %moved, %new : tensor<6x32xf32>, tensor<6x32xf32>
}
}

// -----

// No dim is divided by all 8 devices, but dim 0 by the 4 of sp: the rest keeps copies.
// CHECK-LABEL: func.func public @main
// CHECK-SAME:  %arg1: tensor<12x6xf32> {mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"
module attributes {autoshard.mesh = "dp=2,sp=4"} {
func.func public @main(
    %w: tensor<12x6xf32> {tf.aliasing_output = 0 : i32, mhlo.sharding = "{replicated}"},
    %m: tensor<12x6xf32> {tf.aliasing_output = 1 : i32, mhlo.sharding = "{replicated}"},
    %x: tensor<16x12xf32> {mhlo.sharding = "{replicated}"})
    -> (tensor<12x6xf32> {mhlo.sharding = "{replicated}"}, tensor<12x6xf32> {mhlo.sharding = "{replicated}"}) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"}
      : (tensor<16x12xf32>, tensor<12x6xf32>) -> tensor<16x6xf32>
  %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0]
      {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"}
      : (tensor<16x12xf32>, tensor<16x6xf32>) -> tensor<12x6xf32>
  %new = stablehlo.add %m, %g {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"} : tensor<12x6xf32>
  %moved = stablehlo.subtract %w, %new {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"} : tensor<12x6xf32>
  return %moved, %new : tensor<12x6xf32>, tensor<12x6xf32>
}
}

// -----

// Nothing divides 5 x 7: the state stays on every device.
// CHECK-LABEL: func.func public @main
// CHECK-SAME:  %arg1: tensor<5x7xf32> {mhlo.sharding = "{replicated}"
module attributes {autoshard.mesh = "dp=4"} {
func.func public @main(
    %w: tensor<5x7xf32> {tf.aliasing_output = 0 : i32, mhlo.sharding = "{replicated}"},
    %m: tensor<5x7xf32> {tf.aliasing_output = 1 : i32, mhlo.sharding = "{replicated}"},
    %x: tensor<16x5xf32> {mhlo.sharding = "{replicated}"})
    -> (tensor<5x7xf32> {mhlo.sharding = "{replicated}"}, tensor<5x7xf32> {mhlo.sharding = "{replicated}"}) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"}
      : (tensor<16x5xf32>, tensor<5x7xf32>) -> tensor<16x7xf32>
  %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0]
      {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"}
      : (tensor<16x5xf32>, tensor<16x7xf32>) -> tensor<5x7xf32>
  %new = stablehlo.add %m, %g {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"} : tensor<5x7xf32>
  %moved = stablehlo.subtract %w, %new {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"} : tensor<5x7xf32>
  return %moved, %new : tensor<5x7xf32>, tensor<5x7xf32>
}
}

// -----

// Dim 0 is cut by tp already, and dim 1 is odd: dp cuts what each device has, so that nothing moves.
// CHECK-LABEL: func.func public @main
// CHECK-SAME:  %arg1: tensor<64x7xf32> {mhlo.sharding = "{devices=[8,1]<=[2,4]T(1,0)}"
module attributes {autoshard.mesh = "dp=2,tp=4"} {
func.func public @main(
    %w: tensor<64x7xf32> {tf.aliasing_output = 0 : i32, mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
    %m: tensor<64x7xf32> {tf.aliasing_output = 1 : i32, mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
    %x: tensor<16x64xf32> {mhlo.sharding = "{replicated}"})
    -> (tensor<64x7xf32> {mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"}, tensor<64x7xf32> {mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"}) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"}
      : (tensor<16x64xf32>, tensor<64x7xf32>) -> tensor<16x7xf32>
  %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0]
      {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"}
      : (tensor<16x64xf32>, tensor<16x7xf32>) -> tensor<64x7xf32>
  %new = stablehlo.add %m, %g {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"} : tensor<64x7xf32>
  %moved = stablehlo.subtract %w, %new {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"} : tensor<64x7xf32>
  return %moved, %new : tensor<64x7xf32>, tensor<64x7xf32>
}
}
