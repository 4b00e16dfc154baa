// RUN: not autoshard-opt --autoshard-export-shardy --split-input-file %s 2>&1 | filecheck %s

// A loop's tuple with too few elements.
module attributes {autoshard.mesh = "dp=2,tp=4"} {
func.func @tuple_too_short(%n: tensor<i1> {mhlo.sharding = "{replicated}"},
                           %x: tensor<16x8xf32> {mhlo.sharding = "{replicated}"})
    -> (tensor<16x8xf32> {mhlo.sharding = "{replicated}"}) {
  // CHECK: loops-errors.mlir:[[# @LINE + 1]]:10: error: stablehlo.while has 2 results, its mhlo.sharding '{{[{]}}{replicated}}' has 1 elements
  %r:2 = stablehlo.while(%i = %n, %c = %x) : tensor<i1>, tensor<16x8xf32>
      attributes {mhlo.sharding = "{{replicated}}"}
  cond {
    stablehlo.return %i : tensor<i1>
  } do {
    stablehlo.return %i, %c : tensor<i1>, tensor<16x8xf32>
  }
  return %r#1 : tensor<16x8xf32>
}
}
