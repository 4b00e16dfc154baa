// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation %s | filecheck %s

// Adding rows into a table whose columns are cut stays local.
// CHECK:       autoshard.resharded_bytes = 0.000000e+00
// CHECK-LABEL: func.func @main
func.func @main(%table: tensor<1024x64xf32>, %ids: tensor<32x1xi32>, %rows: tensor<32x64xf32>) -> tensor<1024x64xf32> {
  // CHECK:      stablehlo.scatter
  // CHECK:      autoshard.strategy = "[{}, {tp}], [{}, {}], [{}, {tp}] -> [{}, {tp}]"
  %0 = "stablehlo.scatter"(%table, %ids, %rows) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
      inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %sum = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %sum : tensor<f32>
  }) {autoshard.in_strategy = ["[{}, {tp}]", "None", "None"]}
      : (tensor<1024x64xf32>, tensor<32x1xi32>, tensor<32x64xf32>) -> tensor<1024x64xf32>
  return %0 : tensor<1024x64xf32>
}
