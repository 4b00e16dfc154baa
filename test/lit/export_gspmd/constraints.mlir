// RUN: autoshard-opt --autoshard-export-gspmd %s | filecheck %s

module attributes {autoshard.mesh = "dp=2,tp=4"} {

// Nothing of the plan's own attributes stays, and nothing of Shardy's comes in.
// CHECK-NOT: autoshard.
// CHECK-NOT: sdy.

// Arguments and results carry their shardings, and every op result is held by a constraint that
// all readers read.
// CHECK-LABEL: func.func @every_value_is_held
// CHECK-SAME: %arg0: tensor<16x8xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"}
// CHECK-SAME: -> (tensor<16x8xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"})
func.func @every_value_is_held(
    %x: tensor<16x8xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"})
    -> (tensor<16x8xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"}) {
  // CHECK: %[[Y:.*]] = stablehlo.tanh %arg0 : tensor<16x8xf32>
  // CHECK-NEXT: %[[HELD:.*]] = stablehlo.custom_call @Sharding(%[[Y]]) {backend_config = "", mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"}
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
  // CHECK-NOT: @Sharding
  // CHECK: return
  %y = stablehlo.tanh %x {mhlo.sharding = "{replicated}", autoshard.strategy = "[] -> []"}
      : tensor<f32>
  return %y : tensor<f32>
}

}
