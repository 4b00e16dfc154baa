// RUN: autoshard-opt --mesh=a=2,b=2,c=2,d=2 --autoshard-import-strategies --autoshard-sharding-propagation %s | filecheck %s
// RUN: autoshard-opt --mesh=a=2,b=2,c=2,d=2 --autoshard-import-strategies --autoshard-sharding-propagation='sweeps=0' %s | filecheck %s

// On a mesh of more axes than can be decided together they are decided in groups.
// CHECK:       autoshard.resharded_bytes = 0.000000e+00
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128x32xf32>, %w: tensor<64x32x16xf32>) -> tensor<64x128x16xf32> {
  // CHECK:      stablehlo.dot_general
  // CHECK-SAME: autoshard.strategy = "[{a, b}, {c}, {}], [{a, b}, {}, {d}] -> [{a, b}, {c}, {d}]"
  %0 = stablehlo.dot_general %x, %w, batching_dims = [0] x [0], contracting_dims = [2] x [1]
      {autoshard.in_strategy = ["[{a, b}, {c}, {}]", "[{a, b}, {}, {d}]"]}
      : (tensor<64x128x32xf32>, tensor<64x32x16xf32>) -> tensor<64x128x16xf32>
  // CHECK:      stablehlo.tanh
  // CHECK-SAME: autoshard.strategy = "[{a, b}, {c}, {d}] -> [{a, b}, {c}, {d}]"
  %1 = stablehlo.tanh %0 : tensor<64x128x16xf32>
  return %1 : tensor<64x128x16xf32>
}
