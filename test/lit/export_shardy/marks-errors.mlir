// RUN: not autoshard-opt --autoshard-export-shardy --split-input-file %s 2>&1 | filecheck %s

// XLA ignores a text that it cannot read; here it is an error.
module attributes {autoshard.mesh = "dp=2,tp=4"} {
func.func @unreadable_text(%x: tensor<16x8xf32> {mhlo.sharding = "{replicated}"})
    -> (tensor<16x8xf32> {mhlo.sharding = "{replicated}"}) {
  // CHECK: marks-errors.mlir:[[# @LINE + 1]]:8: error: the result of stablehlo.tanh: cannot read HloSharding '{bogus}'
  %y = stablehlo.tanh %x {mhlo.sharding = "{bogus}"} : tensor<16x8xf32>
  return %y : tensor<16x8xf32>
}
}
