// RUN: autoshard-opt --autoshard-export-shardy %s | filecheck %s

module attributes {autoshard.mesh = "dp=2,tp=4"} {

// The weight is reshaped where it is held, and gathered in the shape that the matmul reads.
// CHECK-LABEL: func.func @a_split_behind_a_matmul
func.func @a_split_behind_a_matmul(
    %x: tensor<64x8xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"},
    %w: tensor<8x16xf32> {mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"})
    -> (tensor<64x2x8xf32>
        {mhlo.sharding = "{devices=[2,1,1,4]<=[8] last_tile_dim_replicate}"}) {
  // CHECK: %[[W:.*]] = stablehlo.reshape %arg1 : (tensor<8x16xf32>) -> tensor<8x2x8xf32>
  // CHECK-NEXT: %[[HELD:.*]] = sdy.sharding_constraint %[[W]] <@mesh, [{"tp"}, {}, {}]>
  // CHECK-NEXT: %[[WHOLE:.*]] = sdy.sharding_constraint %[[HELD]] <@mesh, [{}, {}, {}]>
  // CHECK-NEXT: %[[D:.*]] = stablehlo.dot_general %arg0, %[[WHOLE]], contracting_dims = [1] x [0]
  // CHECK-NEXT: sdy.sharding_constraint %[[D]] <@mesh, [{"dp"}, {}, {}]>
  // CHECK-NOT: stablehlo.reshape
  // CHECK: return
  %d = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {
      mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}",
      autoshard.strategy = "[{dp}, {}], [{}, {}] -> [{dp}, {}]"}
      : (tensor<64x8xf32>, tensor<8x16xf32>) -> tensor<64x16xf32>
  %r = stablehlo.reshape %d {
      mhlo.sharding = "{devices=[2,1,1,4]<=[8] last_tile_dim_replicate}",
      autoshard.strategy = "[{dp}, {}] -> [{dp}, {}, {}]"}
      : (tensor<64x16xf32>) -> tensor<64x2x8xf32>
  return %r : tensor<64x2x8xf32>
}

// Reshaping this weight would be no less than reshaping the result.
// CHECK-LABEL: func.func @a_weight_that_is_larger
func.func @a_weight_that_is_larger(%x: tensor<4x8xf32> {mhlo.sharding = "{replicated}"},
    %w: tensor<8x16xf32> {mhlo.sharding = "{replicated}"})
    -> (tensor<4x2x8xf32> {mhlo.sharding = "{replicated}"}) {
  // CHECK: stablehlo.dot_general %arg0, %arg1
  // CHECK: stablehlo.reshape
  %d = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {
      mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"}
      : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %r = stablehlo.reshape %d {
      mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}] -> [{}, {}, {}]"}
      : (tensor<4x16xf32>) -> tensor<4x2x8xf32>
  return %r : tensor<4x2x8xf32>
}

}
