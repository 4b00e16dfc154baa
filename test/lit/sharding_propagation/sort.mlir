// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation %s | filecheck %s

// The sorted dim must be whole; the other one keeps its cut.
// CHECK:       autoshard.resharded_bytes = 3.072000e+03
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128xf32>) -> tensor<64x128xf32> {
  // CHECK:      stablehlo.tanh
  // CHECK-SAME: autoshard.strategy = "[{dp}, {tp}] -> [{dp}, {tp}]"
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["[{dp}, {tp}]"]} : tensor<64x128xf32>
  // CHECK:      stablehlo.sort
  // CHECK:      autoshard.strategy = "[{dp, tp}, {}] -> [{dp, tp}, {}]"
  %1 = "stablehlo.sort"(%0) <{dimension = 1 : i64}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %less = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %less : tensor<i1>
  }) : (tensor<64x128xf32>) -> tensor<64x128xf32>
  return %1 : tensor<64x128xf32>
}
