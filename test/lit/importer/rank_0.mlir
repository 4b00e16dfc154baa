// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation %s | filecheck %s

// Values of rank 0 are replicated; a sum of a cut value to one number is an all-reduce of 4 bytes
// over 8 devices: 2 * 7/8 * 4 = 7.
// CHECK-LABEL: func.func @main
// CHECK-SAME:    %arg1: tensor<f32> {mhlo.sharding = "{replicated}"}
func.func @main(%x: tensor<64x128xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"}, %s: tensor<f32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<64x128xf32>, tensor<f32>) -> tensor<f32>
  // CHECK:      stablehlo.add %
  // CHECK-SAME: {mhlo.sharding = "{replicated}"} : tensor<f32>
  %1 = stablehlo.add %0, %s : tensor<f32>
  return %1 : tensor<f32>
}
