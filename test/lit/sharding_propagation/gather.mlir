// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation --split-input-file %s | filecheck %s

// Looking up rows of a table whose columns are cut: the columns of the result are cut, no bytes.
// CHECK:       autoshard.resharded_bytes = 0.000000e+00
// CHECK-LABEL: func.func @main
func.func @main(%table: tensor<1024x64xf32>, %ids: tensor<32xi32>) -> tensor<32x64xf32> {
  // CHECK:      stablehlo.gather
  // CHECK-SAME: autoshard.strategy = "[{}, {tp}], [{dp}] -> [{dp}, {tp}]"
  %0 = "stablehlo.gather"(%table, %ids) <{dimension_numbers = #stablehlo.gather<offset_dims = [1],
      collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 64>}>
      {autoshard.in_strategy = ["[{}, {tp}]", "[{dp}]"]} : (tensor<1024x64xf32>, tensor<32xi32>) -> tensor<32x64xf32>
  return %0 : tensor<32x64xf32>
}

// -----

// A table cut by rows: every device looks up what it has, and the partial results are scattered,
// 3/4 of 16 x 64 x 4 bytes; the op is said to make the sum.
// CHECK:       autoshard.resharded_bytes = 3.072000e+03
// CHECK-LABEL: func.func @main
func.func @main(%table: tensor<1024x64xf32>, %ids: tensor<32xi32>) -> tensor<32x64xf32> {
  // CHECK:      stablehlo.gather
  // CHECK-SAME: autoshard.strategy = "[{tp}, {}], [{dp}] -> [{dp}, {}]"
  %0 = "stablehlo.gather"(%table, %ids) <{dimension_numbers = #stablehlo.gather<offset_dims = [1],
      collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 64>}>
      {autoshard.in_strategy = ["[{tp}, {}]", "[{dp}]"]} : (tensor<1024x64xf32>, tensor<32xi32>) -> tensor<32x64xf32>
  return %0 : tensor<32x64xf32>
}
