// RUN: not autoshard-opt --autoshard-optimizer-parallel=shard-size=3 %s 2>&1 | filecheck %s

// CHECK: shard_size-errors.mlir: error: autoshard-optimizer-parallel: shard-size=3, but the mesh dp=4,sp=2 has no axes of 3 devices together, and none that replicates arguments and that 3 divides. Choose a size that divides the number of replicas.
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
