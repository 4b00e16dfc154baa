// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation --split-input-file %s | filecheck %s

sdy.mesh @mesh = <["dp"=2, "tp"=4]>

// An open dim may be cut further, behind the axes that are given.
// CHECK-LABEL: func.func @main
// CHECK-SAME:    mhlo.sharding = "{devices=[8,1]<=[8]}"
func.func @main(%x: tensor<64x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp", ?}, {?}]>}) -> tensor<64x3xf32> {
  // CHECK:      stablehlo.tanh
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}] -> [{dp, tp}, {}]"
  %0 = stablehlo.tanh %x : tensor<64x3xf32>
  return %0 : tensor<64x3xf32>
}

// -----

sdy.mesh @mesh = <["dp"=2, "tp"=4]>

// Not by an axis that must replicate.
// CHECK-LABEL: func.func @main
// CHECK-SAME:    mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"
func.func @main(%x: tensor<64x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp", ?}, {?}], replicated={"tp"}>}) -> tensor<64x3xf32> {
  %0 = stablehlo.tanh %x : tensor<64x3xf32>
  return %0 : tensor<64x3xf32>
}

// -----

sdy.mesh @mesh = <["dp"=2, "tp"=4]>

// A closed one is as it says: cut by dp alone, or whole.
// CHECK-LABEL: func.func @main
// CHECK-SAME:    mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"
// CHECK-SAME:    mhlo.sharding = "{replicated}"
func.func @main(%x: tensor<64x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>},
    %y: tensor<64x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> tensor<64x3xf32> {
  %0 = stablehlo.add %x, %y : tensor<64x3xf32>
  return %0 : tensor<64x3xf32>
}
