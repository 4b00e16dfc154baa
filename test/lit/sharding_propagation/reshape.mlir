// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation --split-input-file %s | filecheck %s

// Merging dims keeps cuts of the major one; the minor one would need the major one cut completely.
// CHECK:       autoshard.resharded_bytes = 0.000000e+00
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<16x4x8xf32>) -> tensor<64x8xf32> {
  // CHECK:      stablehlo.tanh
  // CHECK-SAME: autoshard.strategy = "[{tp}, {}, {dp}] -> [{tp}, {}, {dp}]"
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["[{tp}, {}, {dp}]"]} : tensor<16x4x8xf32>
  // CHECK:      stablehlo.reshape
  // CHECK-SAME: autoshard.strategy = "[{tp}, {}, {dp}] -> [{tp}, {dp}]"
  %1 = stablehlo.reshape %0 : (tensor<16x4x8xf32>) -> tensor<64x8xf32>
  return %1 : tensor<64x8xf32>
}

// -----

// Splitting a dim: its major part takes the cuts.
// CHECK:       autoshard.resharded_bytes = 0.000000e+00
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x8xf32>) -> tensor<16x4x8xf32> {
  // CHECK:      stablehlo.tanh
  // CHECK-SAME: autoshard.strategy = "[{tp, dp}, {}] -> [{tp, dp}, {}]"
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["[{tp, dp}, {}]"]} : tensor<64x8xf32>
  // CHECK:      stablehlo.reshape
  // CHECK-SAME: autoshard.strategy = "[{tp, dp}, {}] -> [{tp, dp}, {}, {}]"
  %1 = stablehlo.reshape %0 : (tensor<64x8xf32>) -> tensor<16x4x8xf32>
  return %1 : tensor<16x4x8xf32>
}

// -----

// A major part that is cut completely lets the minor part be cut.
// CHECK:       autoshard.resharded_bytes = 0.000000e+00
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x8xf32>) -> tensor<2x32x8xf32> {
  // CHECK:      stablehlo.tanh
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}] -> [{dp, tp}, {}]"
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["[{dp, tp}, {}]"]} : tensor<64x8xf32>
  // CHECK:      stablehlo.reshape
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}] -> [{dp}, {tp}, {}]"
  %1 = stablehlo.reshape %0 : (tensor<64x8xf32>) -> tensor<2x32x8xf32>
  return %1 : tensor<2x32x8xf32>
}

// -----

// A minor part cut alone cannot be merged: the cut moves, and bytes are sent.
// CHECK:       autoshard.resharded_bytes = 1.800000e+02
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<15x4x8xf32>) -> tensor<60x8xf32> {
  // CHECK:      stablehlo.tanh
  // CHECK-SAME: autoshard.strategy = "[{}, {tp}, {dp}] -> [{}, {tp}, {dp}]"
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["[{}, {tp}, {dp}]"]} : tensor<15x4x8xf32>
  // CHECK:      stablehlo.reshape
  // CHECK-SAME: autoshard.strategy = "[{}, {}, {dp, tp}] -> [{}, {dp, tp}]"
  %1 = stablehlo.reshape %0 : (tensor<15x4x8xf32>) -> tensor<60x8xf32>
  return %1 : tensor<60x8xf32>
}
