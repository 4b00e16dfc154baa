// RUN: autoshard-opt --mesh=tp=4,mp=2 --autoshard-import-strategies --autoshard-sharding-propagation --autoshard-export-shardy %s | filecheck %s

// Four sub-tables of up to 30 rows, one a device, and the columns that read each: what
// autoshard.manual_split makes. The blocks of the table are cut where they are reshaped, the lookup needs
// no reshard, and its result is cut by columns of the indices and of the table.
// CHECK-LABEL: func.func public @main(
// CHECK-SAME: %arg0: tensor<120x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}, {"mp"}]>}
// CHECK-SAME: %arg1: tensor<4x8xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}, {}]>}
func.func public @main(%table: tensor<120x64xf32>, %rows: tensor<4x8xi32>) -> tensor<4x8x64xf32> {
  // CHECK:      %[[RESHAPED:.*]] = stablehlo.reshape
  // CHECK-NEXT: %[[BLOCKS:.*]] = sdy.sharding_constraint %[[RESHAPED]] <@mesh, [{"tp"}, {}, {"mp"}]>
  %0 = stablehlo.reshape %table : (tensor<120x64xf32>) -> tensor<4x30x64xf32>
  // CHECK:      %[[FOUND:.*]] = "stablehlo.gather"(%[[BLOCKS]]
  // CHECK:      sdy.sharding_constraint %[[FOUND]] <@mesh, [{"tp"}, {}, {"mp"}]>
  // CHECK-NOT:  sdy.sharding_constraint
  %1 = stablehlo.reshape %rows : (tensor<4x8xi32>) -> tensor<4x8x1xi32>
  %2 = "stablehlo.gather"(%0, %1) <{dimension_numbers = #stablehlo.gather<offset_dims = [2],
      collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0],
      start_index_map = [1], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1, 64>}>
      {autoshard.in_strategy = ["(4, 1, 2)", "(4, 1, 1)"]}
      : (tensor<4x30x64xf32>, tensor<4x8x1xi32>) -> tensor<4x8x64xf32>
  return %2 : tensor<4x8x64xf32>
}
