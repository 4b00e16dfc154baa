// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation %s | filecheck %s

// A transpose carries axes along with their dims.
// CHECK:       autoshard.resharded_bytes = 0.000000e+00
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128x8xf32>) -> tensor<8x64x128xf32> {
  // CHECK:      stablehlo.tanh
  // CHECK-SAME: autoshard.strategy = "[{dp}, {tp}, {}] -> [{dp}, {tp}, {}]"
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["[{dp}, {tp}, {}]"]} : tensor<64x128x8xf32>
  // CHECK:      stablehlo.transpose
  // CHECK-SAME: autoshard.strategy = "[{dp}, {tp}, {}] -> [{}, {dp}, {tp}]"
  %1 = stablehlo.transpose %0, dims = [2, 0, 1] : (tensor<64x128x8xf32>) -> tensor<8x64x128xf32>
  return %1 : tensor<8x64x128xf32>
}
