// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation %s | filecheck %s

// Two strategies meet: the reshard happens where the value is smallest, on the bf16 copy.
// CHECK:       autoshard.resharded_bytes = 1.792000e+03
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128xf32>) -> tensor<64x128xf32> {
  // CHECK:      stablehlo.tanh
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}] -> [{dp, tp}, {}]"
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["[{dp, tp}, {}]"], autoshard.out_strategy = ["[{dp, tp}, {}]"]} : tensor<64x128xf32>
  // CHECK:      stablehlo.convert
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}] -> [{dp, tp}, {}]"
  %1 = stablehlo.convert %0 : (tensor<64x128xf32>) -> tensor<64x128xbf16>
  // CHECK:      stablehlo.convert
  // CHECK-SAME: autoshard.strategy = "[{}, {dp, tp}] -> [{}, {dp, tp}]"
  %2 = stablehlo.convert %1 : (tensor<64x128xbf16>) -> tensor<64x128xf32>
  // CHECK:      stablehlo.cosine
  // CHECK-SAME: autoshard.strategy = "[{}, {dp, tp}] -> [{}, {dp, tp}]"
  %3 = stablehlo.cosine %2 {autoshard.in_strategy = ["[{}, {dp, tp}]"]} : tensor<64x128xf32>
  return %3 : tensor<64x128xf32>
}
