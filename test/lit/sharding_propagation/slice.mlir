// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation --split-input-file %s | filecheck %s

// A slice leaves dims that it takes whole as they are cut.
// CHECK:       autoshard.resharded_bytes = 0.000000e+00
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128xf32>) -> tensor<64x32xf32> {
  // CHECK:      stablehlo.tanh
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}] -> [{dp, tp}, {}]"
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["[{dp, tp}, {}]"]} : tensor<64x128xf32>
  // CHECK:      stablehlo.slice
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}] -> [{dp, tp}, {}]"
  %1 = stablehlo.slice %0 [0:64, 32:64] : (tensor<64x128xf32>) -> tensor<64x32xf32>
  return %1 : tensor<64x32xf32>
}

// -----

// The same for dynamic slices and updates.
// CHECK:       autoshard.resharded_bytes = 0.000000e+00
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128xf32>, %i: tensor<i32>) -> tensor<64x128xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  // CHECK:      stablehlo.tanh
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}] -> [{dp, tp}, {}]"
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["[{dp, tp}, {}]"]} : tensor<64x128xf32>
  // CHECK:      stablehlo.dynamic_slice
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}], [], [] -> [{dp, tp}, {}]"
  %1 = stablehlo.dynamic_slice %0, %zero, %i, sizes = [64, 32] : (tensor<64x128xf32>, tensor<i32>, tensor<i32>) -> tensor<64x32xf32>
  // CHECK:      stablehlo.dynamic_update_slice
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}], [{dp, tp}, {}], [], [] -> [{dp, tp}, {}]"
  %2 = stablehlo.dynamic_update_slice %0, %1, %zero, %i : (tensor<64x128xf32>, tensor<64x32xf32>, tensor<i32>, tensor<i32>) -> tensor<64x128xf32>
  return %2 : tensor<64x128xf32>
}
