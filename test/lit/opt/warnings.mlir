// RUN: autoshard-opt --autoshard-import-strategies --autoshard-sharding-propagation %s 2>&1 >%t | filecheck %s
// RUN: autoshard-opt --verify-diagnostics --autoshard-import-strategies --autoshard-sharding-propagation %s

// A warning of a pass is printed with its place, and the output is written all the same.
// CHECK:      model.py:5:2: warning: 1 ops have no factor rule and run replicated, first stablehlo.custom_call @my_kernel. Attach a rule with autoshard.register_rule.
// CHECK-NOT:  warning
// expected-warning@unknown {{1 ops have no factor rule}}
module attributes {autoshard.mesh = "dp=2"} {
  func.func public @main(%x: tensor<8x4xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"}) -> tensor<8x4xf32> {
    %0 = stablehlo.custom_call @my_kernel(%x) : (tensor<8x4xf32>) -> tensor<8x4xf32> loc("model.py":5:2)
    %1 = chlo.square %0 : tensor<8x4xf32> -> tensor<8x4xf32>
    return %1 : tensor<8x4xf32>
  }
}
