// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation --split-input-file %s | filecheck %s

// Reducing over a dim that is not cut sends nothing.
// CHECK:       autoshard.resharded_bytes = 0.000000e+00
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128xf32>) -> tensor<64xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  // CHECK:      stablehlo.reduce
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}], [] -> [{dp, tp}]"
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1]
      {autoshard.in_strategy = ["[{dp, tp}, {}]", "None"]} : (tensor<64x128xf32>, tensor<f32>) -> tensor<64xf32>
  return %0 : tensor<64xf32>
}

// -----

// Over a cut dim each device has a partial result, which is scattered: 3/4 of 32 x 4 bytes. The op
// is said to make the sum, as partitioners scatter those of ops with two operands alone.
// CHECK:       autoshard.resharded_bytes = 9.600000e+01
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128xf32>) -> tensor<64xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  // CHECK:      stablehlo.reduce
  // CHECK-SAME: autoshard.strategy = "[{dp}, {tp}], [] -> [{dp}]"
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1]
      {autoshard.in_strategy = ["[{dp}, {tp}]", "None"]} : (tensor<64x128xf32>, tensor<f32>) -> tensor<64xf32>
  return %0 : tensor<64xf32>
}
