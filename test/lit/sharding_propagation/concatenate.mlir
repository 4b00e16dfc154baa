// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation --split-input-file %s | filecheck %s

// Along a dim that is not concatenated cuts pass.
// CHECK:       autoshard.resharded_bytes = 0.000000e+00
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x16xf32>, %y: tensor<64x48xf32>) -> tensor<64x64xf32> {
  // CHECK:      stablehlo.tanh
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}] -> [{dp, tp}, {}]"
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["[{dp, tp}, {}]"]} : tensor<64x16xf32>
  // CHECK:      stablehlo.concatenate
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}], [{dp, tp}, {}] -> [{dp, tp}, {}]"
  %1 = stablehlo.concatenate %0, %y, dim = 1 : (tensor<64x16xf32>, tensor<64x48xf32>) -> tensor<64x64xf32>
  return %1 : tensor<64x64xf32>
}

// -----

// Along the concatenated dim they would need an exchange; moving the cut of the small operand is cheaper.
// CHECK:       autoshard.resharded_bytes = 4.480000e+02
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x16xf32>, %y: tensor<64x48xf32>) -> tensor<64x64xf32> {
  // CHECK:      stablehlo.tanh
  // CHECK-SAME: autoshard.strategy = "[{}, {dp, tp}] -> [{}, {dp, tp}]"
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["[{}, {dp, tp}]"]} : tensor<64x16xf32>
  // CHECK:      stablehlo.concatenate
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}], [{dp, tp}, {}] -> [{dp, tp}, {}]"
  %1 = stablehlo.concatenate %0, %y, dim = 1 : (tensor<64x16xf32>, tensor<64x48xf32>) -> tensor<64x64xf32>
  return %1 : tensor<64x64xf32>
}
