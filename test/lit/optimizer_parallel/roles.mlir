// RUN: autoshard-opt --autoshard-optimizer-parallel='level=3 threshold-kb=0 parameters=table' %s | filecheck %s
// RUN: autoshard-opt --autoshard-optimizer-parallel='level=3 threshold-kb=0' %s | filecheck %s --check-prefix=FOUND

// Structure says that %x holds the batch; a user who knows better says that it is a parameter.
// CHECK-LABEL: func.func public @main
// CHECK-SAME:  %arg2: tensor<16x64xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"
// FOUND-LABEL: func.func public @main
// FOUND-SAME:  %arg2: tensor<16x64xf32> {mhlo.sharding = "{replicated}"
module attributes {autoshard.mesh = "dp=4"} {
func.func public @main(
    %w: tensor<64x32xf32> {tf.aliasing_output = 0 : i32, mhlo.sharding = "{replicated}"} loc("params['w']"),
    %m: tensor<64x32xf32> {tf.aliasing_output = 1 : i32, mhlo.sharding = "{replicated}"} loc("state['m']"),
    %x: tensor<16x64xf32> {mhlo.sharding = "{replicated}"} loc("table"))
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
