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

// Compilers join a matmul with what only transposes and reshapes it: nothing stands between them,
// and the constraint behind them says where all of it is.
// CHECK-LABEL: func.func @nothing_stands_between_a_matmul_and_its_views
func.func @nothing_stands_between_a_matmul_and_its_views(
    %x: tensor<16x8xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"},
    %w: tensor<8x32xf32> {mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"})
    -> (tensor<4x8x16xf32>
        {mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0)}"}) {
  // CHECK: %[[DOT:.*]] = stablehlo.dot_general
  // CHECK-NEXT: %[[TRANSPOSED:.*]] = stablehlo.transpose %[[DOT]]
  // CHECK-NEXT: %[[RESHAPED:.*]] = stablehlo.reshape %[[TRANSPOSED]]
  // CHECK-NEXT: %[[HELD:.*]] = sdy.sharding_constraint %[[RESHAPED]] <@mesh, [{"tp"}, {}, {"dp"}]>
  %d = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {
      mhlo.sharding = "{devices=[2,4]<=[8]}",
      autoshard.strategy = "[{dp}, {}], [{}, {tp}] -> [{dp}, {tp}]"}
      : (tensor<16x8xf32>, tensor<8x32xf32>) -> tensor<16x32xf32>
  %t = stablehlo.transpose %d, dims = [1, 0] {
      mhlo.sharding = "{devices=[4,2]<=[2,4]T(1,0)}",
      autoshard.strategy = "[{dp}, {tp}] -> [{tp}, {dp}]"}
      : (tensor<16x32xf32>) -> tensor<32x16xf32>
  %r = stablehlo.reshape %t {
      mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0)}",
      autoshard.strategy = "[{tp}, {dp}] -> [{tp}, {}, {dp}]"}
      : (tensor<32x16xf32>) -> tensor<4x8x16xf32>
  return %r : tensor<4x8x16xf32>
}

// Two readers, or one that wants it elsewhere: the matmul's own result is held.
// CHECK-LABEL: func.func @a_matmul_with_two_readers_is_held
func.func @a_matmul_with_two_readers_is_held(
    %x: tensor<16x8xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"},
    %w: tensor<8x16xf32> {mhlo.sharding = "{replicated}"})
    -> (tensor<16x16xf32> {mhlo.sharding = "{devices=[1,2,4]<=[8] last_tile_dim_replicate}"},
        tensor<16x16xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"}) {
  // CHECK: %[[DOT:.*]] = stablehlo.dot_general
  // CHECK-NEXT: %[[HELD:.*]] = sdy.sharding_constraint %[[DOT]] <@mesh, [{"dp"}, {}]>
  // CHECK-NEXT: stablehlo.transpose %[[HELD]]
  %d = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {
      mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}",
      autoshard.strategy = "[{dp}, {}], [{}, {}] -> [{dp}, {}]"}
      : (tensor<16x8xf32>, tensor<8x16xf32>) -> tensor<16x16xf32>
  %t = stablehlo.transpose %d, dims = [1, 0] {
      mhlo.sharding = "{devices=[1,2,4]<=[8] last_tile_dim_replicate}",
      autoshard.strategy = "[{dp}, {}] -> [{}, {dp}]"}
      : (tensor<16x16xf32>) -> tensor<16x16xf32>
  return %t, %d : tensor<16x16xf32>, tensor<16x16xf32>
}

// CHECK-LABEL: func.func @a_matmul_is_held_where_its_reader_wants_it_elsewhere
func.func @a_matmul_is_held_where_its_reader_wants_it_elsewhere(
    %x: tensor<16x8xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"},
    %w: tensor<8x16xf32> {mhlo.sharding = "{replicated}"})
    -> (tensor<16x16xf32> {mhlo.sharding = "{replicated}"}) {
  // CHECK: %[[DOT:.*]] = stablehlo.dot_general
  // CHECK-NEXT: %[[HELD:.*]] = sdy.sharding_constraint %[[DOT]] <@mesh, [{"dp"}, {}]>
  // CHECK-NEXT: %[[WHOLE:.*]] = sdy.sharding_constraint %[[HELD]] <@mesh, [{}, {}]>
  // CHECK-NEXT: stablehlo.transpose %[[WHOLE]]
  %d = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {
      mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}",
      autoshard.strategy = "[{dp}, {}], [{}, {}] -> [{dp}, {}]"}
      : (tensor<16x8xf32>, tensor<8x16xf32>) -> tensor<16x16xf32>
  %t = stablehlo.transpose %d, dims = [1, 0] {
      mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}] -> [{}, {}]"}
      : (tensor<16x16xf32>) -> tensor<16x16xf32>
  return %t : tensor<16x16xf32>
}

}
