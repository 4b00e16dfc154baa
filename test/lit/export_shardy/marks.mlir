// RUN: autoshard-opt --autoshard-export-shardy %s | filecheck %s

module attributes {autoshard.mesh = "dp=2,tp=4"} {

// The name of the plan's mesh is free: another symbol keeps its own.
// CHECK-DAG: sdy.mesh @mesh = <["other"=8]>
// CHECK-DAG: sdy.mesh @mesh_1 = <["dp"=2, "tp"=4]>
sdy.mesh @mesh = <["other"=8]>

// Marks of autoshard.shard disappear.
// CHECK-LABEL: func.func @marks_disappear
func.func @marks_disappear(
    %x: tensor<16x8xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"})
    -> (tensor<16x8xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"}) {
  // CHECK-NOT: autoshard.mark
  // CHECK: stablehlo.tanh %arg0
  %m = stablehlo.custom_call @autoshard.mark(%x) {
      autoshard.layout = "(2, 1)",
      mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"}
      : (tensor<16x8xf32>) -> tensor<16x8xf32>
  %y = stablehlo.tanh %m {
      mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}",
      autoshard.strategy = "[{dp}, {}] -> [{dp}, {}]"} : tensor<16x8xf32>
  return %y : tensor<16x8xf32>
}

// A constraint of the user's was a pin; the plan's sharding takes its place.
// CHECK-LABEL: func.func @constraints_are_replaced
func.func @constraints_are_replaced(%x: tensor<16x8xf32> {mhlo.sharding = "{replicated}"})
    -> (tensor<16x8xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"}) {
  // CHECK: %[[CUT:.*]] = sdy.sharding_constraint %arg0 <@mesh_1, [{"dp"}, {}]>
  // CHECK-NEXT: return %[[CUT]]
  %y = sdy.sharding_constraint %x <@mesh, [{?}, {?}]> {
      mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"} : tensor<16x8xf32>
  return %y : tensor<16x8xf32>
}

// A manual computation's body is the user's own.
// CHECK-LABEL: func.func @manual_bodies_stay
func.func @manual_bodies_stay(%x: tensor<16x8xf32> {mhlo.sharding = "{replicated}"})
    -> (tensor<16x8xf32> {mhlo.sharding = "{replicated}"}) {
  // CHECK: sdy.manual_computation(%arg0)
  // CHECK-SAME: manual_axes={"other"} (%[[IN:.*]]: tensor<2x8xf32>) {
  // CHECK-NEXT: %[[Y:.*]] = stablehlo.tanh %[[IN]]
  // CHECK-NEXT: sdy.return %[[Y]]
  %y = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"other"}, {}]>]
      out_shardings=[<@mesh, [{"other"}, {}]>] manual_axes={"other"} (%in: tensor<2x8xf32>) {
    %t = stablehlo.tanh %in : tensor<2x8xf32>
    sdy.return %t : tensor<2x8xf32>
  } {mhlo.sharding = "{replicated}"} : (tensor<16x8xf32>) -> tensor<16x8xf32>
  // CHECK: sdy.sharding_constraint %{{.*}} <@mesh_1, [{}, {}]>
  return %y : tensor<16x8xf32>
}

}
