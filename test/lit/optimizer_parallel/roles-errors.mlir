// RUN: not autoshard-opt --autoshard-optimizer-parallel=parameters=weights %s 2>&1 | filecheck %s
// RUN: not autoshard-opt --autoshard-optimizer-parallel=states=3 %s 2>&1 | filecheck %s --check-prefix=NUMBER

// CHECK:  roles-errors.mlir: error: autoshard-optimizer-parallel: no argument is called weights; there are 3: params, state, table. Give a name, params or params['w'], or a number from 0.
// NUMBER: error: autoshard-optimizer-parallel: no argument is called 3; there are 3
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
