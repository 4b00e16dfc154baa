// RUN: autoshard-opt %s | filecheck %s

// The dialects that JAX lowers to are known: stablehlo, chlo, sdy, mhlo's attributes.
// CHECK:       sdy.mesh @mesh = <["dp"=2, "tp"=4]>
sdy.mesh @mesh = <["dp"=2, "tp"=4]>

// CHECK-LABEL: func.func @several_dialects
// CHECK-SAME:    sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {"tp", ?}]>
func.func @several_dialects(
    %x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {"tp", ?}]>})
    -> tensor<8x4xf32> {
  // CHECK:       chlo.erf_inv %arg0 : tensor<8x4xf32> -> tensor<8x4xf32>
  %0 = chlo.erf_inv %x : tensor<8x4xf32> -> tensor<8x4xf32>
  // CHECK:       sdy.sharding_constraint %0 <@mesh, [{"dp"}, {}]>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"dp"}, {}]> : tensor<8x4xf32>
  // CHECK:       stablehlo.custom_call @Sharding(%1) {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"}
  %2 = stablehlo.custom_call @Sharding(%1)
      {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"}
      : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %2 : tensor<8x4xf32>
}
