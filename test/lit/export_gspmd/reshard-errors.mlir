// RUN: not autoshard-opt --autoshard-export-gspmd --split-input-file %s 2>&1 | filecheck %s

// A sharding of another rank.
module attributes {autoshard.mesh = "dp=2,tp=4"} {
func.func @wrong_rank(%x: tensor<16x8xf32> {mhlo.sharding = "{replicated}"})
    -> (tensor<16x8xf32> {mhlo.sharding = "{replicated}"}) {
  // CHECK: reshard-errors.mlir:[[# @LINE + 1]]:8: error: the result of stablehlo.tanh:
  %y = stablehlo.tanh %x {mhlo.sharding = "{devices=[8]<=[8]}"} : tensor<16x8xf32>
  return %y : tensor<16x8xf32>
}
}

// -----

// A size that the pieces do not divide.
module attributes {autoshard.mesh = "dp=2,tp=4"} {
func.func @indivisible(%x: tensor<16x6xf32> {mhlo.sharding = "{replicated}"})
    -> (tensor<16x6xf32> {mhlo.sharding = "{replicated}"}) {
  // CHECK: reshard-errors.mlir:[[# @LINE + 1]]:8: error: the result of stablehlo.tanh: {{.*}}dim 1 (size 6) cannot be split by axis "tp" (size 4): 6 % 4 = 2
  %y = stablehlo.tanh %x {mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : tensor<16x6xf32>
  return %y : tensor<16x6xf32>
}
}

// -----

// A strategy for another number of operands.
module attributes {autoshard.mesh = "dp=2,tp=4"} {
func.func @strategy_does_not_fit(%x: tensor<16x8xf32> {mhlo.sharding = "{replicated}"})
    -> (tensor<16x8xf32> {mhlo.sharding = "{replicated}"}) {
  // CHECK: reshard-errors.mlir:[[# @LINE + 1]]:8: error: stablehlo.tanh: autoshard.strategy '[{}, {}], [{}, {}] -> [{}, {}]': does not have one sharding for each of 1 operands and 1 results
  %y = stablehlo.tanh %x {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"} : tensor<16x8xf32>
  return %y : tensor<16x8xf32>
}
}
