// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation %s | filecheck %s

// Padding one dim leaves the cuts of the others.
// CHECK:       autoshard.resharded_bytes = 0.000000e+00
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128xf32>) -> tensor<64x144xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  // CHECK:      stablehlo.tanh
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}] -> [{dp, tp}, {}]"
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["[{dp, tp}, {}]"]} : tensor<64x128xf32>
  // CHECK:      stablehlo.pad
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}], [] -> [{dp, tp}, {}]"
  %1 = stablehlo.pad %0, %zero, low = [0, 8], high = [0, 8], interior = [0, 0] : (tensor<64x128xf32>, tensor<f32>) -> tensor<64x144xf32>
  return %1 : tensor<64x144xf32>
}
