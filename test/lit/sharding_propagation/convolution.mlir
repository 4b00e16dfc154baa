// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation --split-input-file %s | filecheck %s

// A convolution over a cut batch sends nothing, and its kernel replicates over dp.
// CHECK:       autoshard.resharded_bytes = 0.000000e+00
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<16x32x32x8xf32>, %k: tensor<3x3x8x64xf32>) -> tensor<16x32x32x64xf32> {
  // CHECK:      stablehlo.convolution
  // CHECK-SAME: autoshard.strategy = "[{dp}, {}, {}, {}], [{}, {}, {}, {tp}] -> [{dp}, {}, {}, {tp}]"
  %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64,
      autoshard.in_strategy = ["[{dp}, {}, {}, {}]", "[{}, {}, {}, {tp}]"]}
      : (tensor<16x32x32x8xf32>, tensor<3x3x8x64xf32>) -> tensor<16x32x32x64xf32>
  return %0 : tensor<16x32x32x64xf32>
}

// -----

// The rows of the image may be cut as well: neighbours exchange a halo, which reshards nothing.
// CHECK:       autoshard.resharded_bytes = 0.000000e+00
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<16x32x32x8xf32>, %k: tensor<3x3x8x64xf32>) -> tensor<16x32x32x64xf32> {
  // CHECK:      stablehlo.convolution
  // CHECK-SAME: autoshard.strategy = "[{dp}, {tp}, {}, {}], [{}, {}, {}, {}] -> [{dp}, {tp}, {}, {}]"
  %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64,
      autoshard.in_strategy = ["[{dp}, {tp}, {}, {}]", "None"]}
      : (tensor<16x32x32x8xf32>, tensor<3x3x8x64xf32>) -> tensor<16x32x32x64xf32>
  return %0 : tensor<16x32x32x64xf32>
}
