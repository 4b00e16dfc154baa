// RUN: autoshard-opt --autoshard-export-shardy %s | filecheck %s

module attributes {autoshard.mesh = "dp=2,tp=4"} {

// An operand that its op wants elsewhere is resharded right before it; what XLA has no
// pattern for is done in steps, here a cut before the all-gather.
// CHECK-LABEL: func.func @operand_moves_in_steps
func.func @operand_moves_in_steps(
    %x: tensor<16x8xf32> {mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"})
    -> (tensor<16x8xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"}) {
  // CHECK: %[[CUT:.*]] = sdy.sharding_constraint %arg0 <@mesh, [{"dp"}, {"tp"}]>
  // CHECK-NEXT: %[[GATHERED:.*]] = sdy.sharding_constraint %[[CUT]] <@mesh, [{"dp"}, {}]>
  // CHECK-NEXT: stablehlo.tanh %[[GATHERED]]
  %y = stablehlo.tanh %x {
      mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}",
      autoshard.strategy = "[{dp}, {}] -> [{dp}, {}]"} : tensor<16x8xf32>
  return %y : tensor<16x8xf32>
}

// Two readers that want the same share one copy.
// CHECK-LABEL: func.func @readers_share_a_copy
func.func @readers_share_a_copy(%x: tensor<16x8xf32> {mhlo.sharding = "{replicated}"})
    -> (tensor<16x8xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"}) {
  // CHECK: %[[COPY:.*]] = sdy.sharding_constraint %arg0 <@mesh, [{"dp"}, {}]>
  // CHECK-NEXT: stablehlo.tanh %[[COPY]]
  %y = stablehlo.tanh %x {
      mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}",
      autoshard.strategy = "[{dp}, {}] -> [{dp}, {}]"} : tensor<16x8xf32>
  // CHECK-NOT: sdy.sharding_constraint %arg0
  // CHECK: stablehlo.add %{{.*}}, %[[COPY]]
  %z = stablehlo.add %y, %x {
      mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}",
      autoshard.strategy = "[{dp}, {}], [{dp}, {}] -> [{dp}, {}]"} : tensor<16x8xf32>
  return %z : tensor<16x8xf32>
}

// What an op computes is held first, then what its readers get.
// CHECK-LABEL: func.func @result_moves_after_the_op
func.func @result_moves_after_the_op(
    %x: tensor<16x8xf32> {mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
    %w: tensor<8x8xf32> {mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"})
    -> (tensor<16x8xf32> {mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"}) {
  // CHECK: %[[SUM:.*]] = stablehlo.dot_general
  // CHECK-NEXT: %[[WHOLE:.*]] = sdy.sharding_constraint %[[SUM]] <@mesh, [{}, {}]>
  // CHECK-NEXT: %[[CUT:.*]] = sdy.sharding_constraint %[[WHOLE]] <@mesh, [{}, {"tp"}]>
  // CHECK-NEXT: return %[[CUT]]
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {
      mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}",
      autoshard.strategy = "[{}, {tp}], [{tp}, {}] -> [{}, {}]"}
      : (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
  return %y : tensor<16x8xf32>
}

// A constant, an iota or a broadcast scalar is made again instead of being moved.
// CHECK-LABEL: func.func @constants_are_made_again
func.func @constants_are_made_again(
    %x: tensor<16x8xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"})
    -> (tensor<16x8xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"},
        tensor<16x8xf32> {mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"}) {
  // CHECK-DAG: %[[ROWS:.*]] = sdy.sharding_constraint %{{.*}} <@mesh, [{"dp"}, {}]> : tensor<16x8xf32>
  // CHECK-DAG: %[[COLUMNS:.*]] = sdy.sharding_constraint %cst{{.*}} <@mesh, [{}, {"tp"}]>
  // CHECK: stablehlo.add %arg0, %{{.*}}
  // CHECK: return %{{.*}}, %[[COLUMNS]]
  %c = stablehlo.constant {mhlo.sharding = "{replicated}"} dense<2.0> : tensor<16x8xf32>
  %y = stablehlo.add %x, %c {
      mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}",
      autoshard.strategy = "[{dp}, {}], [{dp}, {}] -> [{dp}, {}]"} : tensor<16x8xf32>
  return %y, %c : tensor<16x8xf32>, tensor<16x8xf32>
}

}
