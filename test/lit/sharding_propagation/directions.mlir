// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation --split-input-file %s | filecheck %s

// From one marked op in the middle both ways: to the arguments it is made of and to the result.
// CHECK:       autoshard.resharded_bytes = 0.000000e+00
// CHECK-LABEL: func.func @main
// CHECK-SAME:    %arg0: tensor<64x128xf32> {mhlo.sharding = "{devices=[2,4]<=[8]}"}
// CHECK-SAME:    %arg1: tensor<64x128xf32> {mhlo.sharding = "{devices=[2,4]<=[8]}"}
// CHECK-SAME:    -> (tensor<64x128xf32> {mhlo.sharding = "{devices=[2,4]<=[8]}"})
func.func @main(%x: tensor<64x128xf32>, %y: tensor<64x128xf32>) -> tensor<64x128xf32> {
  // CHECK:      stablehlo.add
  // CHECK-SAME: autoshard.strategy = "[{dp}, {tp}], [{dp}, {tp}] -> [{dp}, {tp}]"
  %0 = stablehlo.add %x, %y : tensor<64x128xf32>
  // CHECK:      stablehlo.tanh
  // CHECK-SAME: autoshard.strategy = "[{dp}, {tp}] -> [{dp}, {tp}]"
  %1 = stablehlo.tanh %0 {autoshard.in_strategy = ["[{dp}, {tp}]"]} : tensor<64x128xf32>
  // CHECK:      stablehlo.multiply
  // CHECK-SAME: autoshard.strategy = "[{dp}, {tp}], [{dp}, {tp}] -> [{dp}, {tp}]"
  %2 = stablehlo.multiply %1, %y : tensor<64x128xf32>
  return %2 : tensor<64x128xf32>
}
