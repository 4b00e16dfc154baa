// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation %s -o %t.once
// RUN: autoshard-opt --autoshard-import-strategies --autoshard-sharding-propagation %t.once -o %t.twice
// RUN: filecheck %s < %t.once
// RUN: filecheck %s < %t.twice

// A planned module is a module whose every value is pinned: planning it again changes no sharding.
// CHECK:       autoshard.resharded_bytes = 2.457600e+04
// CHECK-LABEL: func.func @main
// CHECK-SAME:    mhlo.sharding = "{devices=[2,4]<=[8]}"
func.func @main(%x: tensor<64x128xf32>, %w: tensor<128x256xf32>) -> tensor<64x256xf32> {
  // CHECK:      stablehlo.dot_general
  // CHECK-SAME: autoshard.strategy = "[{dp}, {tp}], [{tp}, {}] -> [{dp}, {tp}]"
  // CHECK-SAME: mhlo.sharding = "{devices=[2,4]<=[8]}"
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      {autoshard.in_strategy = ["[{dp}, {tp}]", "[{tp}, {}]"]} : (tensor<64x128xf32>, tensor<128x256xf32>) -> tensor<64x256xf32>
  return %0 : tensor<64x256xf32>
}
