// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation --split-input-file %s | filecheck %s

// Rows cut by dp and columns cut by tp: the result has both, and nothing is sent.
// CHECK:       autoshard.resharded_bytes = 0.000000e+00
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128xf32>, %w: tensor<128x256xf32>) -> tensor<64x256xf32> {
  // CHECK:      stablehlo.dot_general
  // CHECK-SAME: autoshard.strategy = "[{dp}, {}], [{}, {tp}] -> [{dp}, {tp}]"
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      {autoshard.in_strategy = ["[{dp}, {}]", "[{}, {tp}]"]} : (tensor<64x128xf32>, tensor<128x256xf32>) -> tensor<64x256xf32>
  return %0 : tensor<64x256xf32>
}

// -----

// The contracted dim cut by tp gives partial sums. Nobody wants them in one place more than in
// another, so they are scattered: each device sends 3/4 of its 64 x 256 x 4 = 64 KiB, halved by dp.
// CHECK:       autoshard.resharded_bytes = 2.457600e+04
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128xf32>, %w: tensor<128x256xf32>) -> tensor<64x256xf32> {
  // CHECK:      stablehlo.dot_general
  // CHECK-SAME: autoshard.strategy = "[{dp}, {tp}], [{tp}, {}] -> [{dp}, {tp}]"
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      {autoshard.in_strategy = ["[{dp}, {tp}]", "[{tp}, {}]"]} : (tensor<64x128xf32>, tensor<128x256xf32>) -> tensor<64x256xf32>
  return %0 : tensor<64x256xf32>
}

// -----

// With the result pinned to rows by dp the partial sums become an all-reduce: twice the bytes.
// CHECK:       autoshard.resharded_bytes = 4.915200e+04
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128xf32>, %w: tensor<128x256xf32>) -> tensor<64x256xf32> {
  // CHECK:      stablehlo.dot_general
  // CHECK-SAME: autoshard.strategy = "[{dp}, {tp}], [{tp}, {}] -> [{dp}, {}]"
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      {autoshard.in_strategy = ["[{dp}, {tp}]", "[{tp}, {}]"], autoshard.out_strategy = ["[{dp}, {}]"]} : (tensor<64x128xf32>, tensor<128x256xf32>) -> tensor<64x256xf32>
  return %0 : tensor<64x256xf32>
}
