// RUN: not autoshard-opt --autoshard-host-offload --autoshard-recursive-programming='cluster=cpu:8 mesh=d=8' %s 2>&1 | filecheck %s

// The host has no collectives: a table whose rows are cut cannot be looked up there.
// CHECK: on_host-errors.mlir:14:{{.*}}gather: no way to split the op
func.func public @main(
    %table: tensor<64x16xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"}, %rows: tensor<8x1xi32>)
    -> tensor<8x16xf32> {
  %0 = call @look_up(%table, %rows) {mhlo.frontend_attributes = {_xla_compute_type = "host"}}
      : (tensor<64x16xf32>, tensor<8x1xi32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

func.func private @look_up(%table: tensor<64x16xf32>, %rows: tensor<8x1xi32>) -> tensor<8x16xf32> {
  %0 = "stablehlo.gather"(%table, %rows) <{dimension_numbers = #stablehlo.gather<offset_dims = [1],
      collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
      slice_sizes = array<i64: 1, 16>}> : (tensor<64x16xf32>, tensor<8x1xi32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
