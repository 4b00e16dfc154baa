// RUN: autoshard-opt --autoshard-export-shardy %s | filecheck %s

module attributes {autoshard.mesh = "dp=2,tp=4"} {

// A loop is pinned at its operands, block arguments, yields and results; it has no attribute
// itself, which would end XLA's process.
// CHECK-LABEL: func.func @loop
func.func @loop(%n: tensor<i32> {mhlo.sharding = "{replicated}"},
                %x: tensor<16x8xf32> {mhlo.sharding = "{replicated}"})
    -> (tensor<16x8xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"}) {
  // CHECK: %[[START:.*]] = sdy.sharding_constraint %arg1 <@mesh, [{"dp"}, {}]>
  // CHECK-NEXT: %[[LOOP:.*]]:2 = stablehlo.while(%[[I:.*]] = %arg0, %[[C:.*]] = %[[START]])
  // CHECK-NOT: attributes
  // CHECK: cond
  %zero = stablehlo.constant {mhlo.sharding = "{replicated}"} dense<0> : tensor<i32>
  %r:2 = stablehlo.while(%i = %n, %c = %x) : tensor<i32>, tensor<16x8xf32>
      attributes {mhlo.sharding = "{{replicated}, {devices=[2,1,4]<=[8] last_tile_dim_replicate}}"}
  cond {
    %go = stablehlo.compare GT, %i, %zero {mhlo.sharding = "{replicated}"}
        : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    // CHECK: do {
    // CHECK-NEXT: %[[HELD:.*]] = sdy.sharding_constraint %[[C]] <@mesh, [{"dp"}, {}]>
    // CHECK: %[[COLUMNS:.*]] = sdy.sharding_constraint %{{.*}} <@mesh, [{}, {"tp"}]>
    // CHECK-NEXT: %[[Y:.*]] = stablehlo.tanh %[[COLUMNS]]
    // CHECK: %[[YIELD:.*]] = sdy.sharding_constraint %{{.*}} <@mesh, [{"dp"}, {}]>
    // CHECK-NEXT: stablehlo.return %{{.*}}, %[[YIELD]]
    %j = stablehlo.negate %i {mhlo.sharding = "{replicated}"} : tensor<i32>
    %y = stablehlo.tanh %c {
        mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}",
        autoshard.strategy = "[{}, {tp}] -> [{}, {tp}]"} : tensor<16x8xf32>
    stablehlo.return %j, %y : tensor<i32>, tensor<16x8xf32>
  }
  // CHECK: %[[RESULT:.*]] = sdy.sharding_constraint %[[LOOP]]#1 <@mesh, [{"dp"}, {}]>
  // CHECK-NEXT: return %[[RESULT]]
  return %r#1 : tensor<16x8xf32>
}

}
