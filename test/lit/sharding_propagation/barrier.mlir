// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation --split-input-file %s | filecheck %s
// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation --autoshard-export-shardy --split-input-file %s | filecheck %s --check-prefix=EXPORT

// Shardy's propagation leaves another sharding on a barrier than on the closed argument that it
// holds back: both stay, and the argument is resharded before the barrier.
// CHECK-LABEL: func.func @main
// CHECK-SAME:    %arg0: tensor<64x128xf32> {{.*}}mhlo.sharding = "{replicated}"}
// CHECK:       optimization_barrier {{.*}}mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"} %arg0
// EXPORT-LABEL: func.func @main
// EXPORT:       %[[PART:.*]] = sdy.sharding_constraint %arg0 <@mesh, [{"dp"}, {}]>
// EXPORT:       optimization_barrier %[[PART]]
func.func @main(%w: tensor<64x128xf32> {mhlo.sharding = "{replicated}"}) -> tensor<64x128xf32> {
  %0 = stablehlo.optimization_barrier
      {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"} %w : tensor<64x128xf32>
  %1 = stablehlo.tanh %0 : tensor<64x128xf32>
  return %1 : tensor<64x128xf32>
}

// -----

// The same of a call: what it returns is resharded behind it.
// CHECK-LABEL: func.func @main
// CHECK:       call @double(%arg0) {{.*}}mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"}
// CHECK:       stablehlo.add %arg0, %arg0 {{.*}}mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"
// EXPORT-LABEL: func.func @main
// EXPORT:       %[[MADE:.*]] = call @double(%arg0)
// EXPORT-NEXT:  %[[COLUMNS:.*]] = sdy.sharding_constraint %[[MADE]] <@mesh, [{}, {"tp"}]>
// EXPORT-NEXT:  %[[BOTH:.*]] = sdy.sharding_constraint %[[COLUMNS]] <@mesh, [{"dp"}, {"tp"}]>
// EXPORT-NEXT:  sdy.sharding_constraint %[[BOTH]] <@mesh, [{"dp"}, {}]>
func.func @main(%x: tensor<64x128xf32>) -> tensor<64x128xf32> {
  %0 = call @double(%x)
      {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"} : (tensor<64x128xf32>) -> tensor<64x128xf32>
  %1 = stablehlo.tanh %0 : tensor<64x128xf32>
  return %1 : tensor<64x128xf32>
}
func.func private @double(%x: tensor<64x128xf32>) -> tensor<64x128xf32> {
  %0 = stablehlo.add %x, %x
      {mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : tensor<64x128xf32>
  return %0 : tensor<64x128xf32>
}
