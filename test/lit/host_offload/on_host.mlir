// RUN: autoshard-opt --autoshard-host-offload %s | filecheck %s
// RUN: autoshard-opt --autoshard-host-offload=marks=false %s | filecheck %s --check-prefix=NONE

// A table that only the host reads lives there, and is not moved.
// CHECK-LABEL: func.func public @main
// CHECK-SAME:  %arg0: tensor<64x16xf32> {mhlo.memory_kind = "pinned_host"}, %arg1: tensor<8x1xi32>)
// CHECK-NEXT:  call @look_up(%arg0, %arg1) {mhlo.frontend_attributes = {_xla_compute_type = "host"}}
// NONE-NOT:    host
func.func public @main(%table: tensor<64x16xf32>, %rows: tensor<8x1xi32>) -> tensor<8x16xf32> {
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
