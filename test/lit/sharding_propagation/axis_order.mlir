// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation %s | filecheck %s

// Axes on one dim keep the order that the user gave; the other order would be another placement.
// CHECK:       autoshard.resharded_bytes = 0.000000e+00
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128xf32>) -> tensor<128x64xf32> {
  // CHECK:      stablehlo.tanh
  // CHECK-SAME: autoshard.strategy = "[{tp, dp}, {}] -> [{tp, dp}, {}]"
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["[{tp, dp}, {}]"]} : tensor<64x128xf32>
  // CHECK:      stablehlo.transpose
  // CHECK-SAME: autoshard.strategy = "[{tp, dp}, {}] -> [{}, {tp, dp}]"
  %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<64x128xf32>) -> tensor<128x64xf32>
  return %1 : tensor<128x64xf32>
}
