// RUN: autoshard-opt --autoshard-export-shardy %s | filecheck %s

module attributes {autoshard.mesh = "dp=2,tp=4"} {

// The plan's mesh becomes a symbol, and nothing of the plan's own attributes stays.
// CHECK-NOT: autoshard.
// CHECK-NOT: mhlo.sharding
// CHECK: sdy.mesh @mesh = <["dp"=2, "tp"=4]>

// Arguments and results carry their shardings, and every op result is held by a constraint that
// all readers read.
// CHECK-LABEL: func.func @every_value_is_held
// CHECK-SAME: %arg0: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>}
// CHECK-SAME: -> (tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>})
func.func @every_value_is_held(
    %x: tensor<16x8xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"})
    -> (tensor<16x8xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"}) {
  // CHECK: %[[Y:.*]] = stablehlo.tanh %arg0 : tensor<16x8xf32>
  // CHECK-NEXT: %[[HELD:.*]] = sdy.sharding_constraint %[[Y]] <@mesh, [{"dp"}, {}]>
  %y = stablehlo.tanh %x {
      mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}",
      autoshard.strategy = "[{dp}, {}] -> [{dp}, {}]", autoshard.pinned} : tensor<16x8xf32>
  // CHECK-NEXT: return %[[HELD]]
  return %y : tensor<16x8xf32>
}

// A scalar is whole on every device: there is nothing to hold.
// CHECK-LABEL: func.func @scalars_are_not_held
func.func @scalars_are_not_held(%x: tensor<f32> {mhlo.sharding = "{replicated}"})
    -> (tensor<f32> {mhlo.sharding = "{replicated}"}) {
  // CHECK: stablehlo.tanh
  // CHECK-NOT: sharding_constraint
  // CHECK: return
  %y = stablehlo.tanh %x {mhlo.sharding = "{replicated}", autoshard.strategy = "[] -> []"}
      : tensor<f32>
  return %y : tensor<f32>
}

}
