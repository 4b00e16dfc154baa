// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation %s | filecheck %s

// Of plans that send the same, the one that splits more work: what the pin leaves open is cut.
// CHECK:       autoshard.resharded_bytes = 0.000000e+00
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128xf32>, %y: tensor<64x128xf32>) -> tensor<64x128xf32> {
  // CHECK:      stablehlo.add
  // CHECK-SAME: autoshard.strategy = "[{dp}, {tp}], [{dp}, {tp}] -> [{dp}, {tp}]"
  %0 = stablehlo.add %x, %y {autoshard.in_strategy = ["(2, ?)", "None"]} : tensor<64x128xf32>
  return %0 : tensor<64x128xf32>
}
