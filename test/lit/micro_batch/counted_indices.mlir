// RUN: autoshard-opt --autoshard-micro-batch='micro-batches=2 batch=0' %s | filecheck %s

// As of x.at[jnp.arange(4)[:, None], columns]: the first index is the number of the row, also through JAX's
// test for numbers from the end, so that each example has its own elements.
// CHECK-LABEL: func.func public @main
// CHECK:       stablehlo.while
// CHECK:       "stablehlo.scatter"(
// CHECK-SAME:    inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 2
// CHECK:       (tensor<2x8xf32>, tensor<2x3x1xi32>, tensor<2x3xf32>) -> tensor<2x8xf32>
func.func public @main(%x: tensor<4x3xf32>, %w: tensor<3x3xf32>) -> tensor<4x8xf32> {
  %zeros = stablehlo.constant dense<0.0> : tensor<4x8xf32>
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<4x3xf32>, tensor<3x3xf32>) -> tensor<4x3xf32> loc("moe.py":6:1)
  %zero = stablehlo.constant dense<0> : tensor<4x1xi32>
  %four = stablehlo.constant dense<4> : tensor<4x1xi32>
  %iota = stablehlo.iota dim = 0 : tensor<4xi32>
  %row = stablehlo.reshape %iota : (tensor<4xi32>) -> tensor<4x1xi32>
  %is_below = stablehlo.compare LT, %row, %zero : (tensor<4x1xi32>, tensor<4x1xi32>) -> tensor<4x1xi1>
  %from_end = stablehlo.add %row, %four : tensor<4x1xi32>
  %rows = stablehlo.select %is_below, %from_end, %row : tensor<4x1xi1>, tensor<4x1xi32>
  %all = stablehlo.broadcast_in_dim %rows, dims = [0, 1] : (tensor<4x1xi32>) -> tensor<4x3x1xi32>
  %columns = stablehlo.iota dim = 1 : tensor<4x3x1xi32>
  %at = stablehlo.concatenate %all, %columns, dim = 2
      : (tensor<4x3x1xi32>, tensor<4x3x1xi32>) -> tensor<4x3x2xi32>
  %marked = "stablehlo.scatter"(%zeros, %at, %h) <{scatter_dimension_numbers = #stablehlo.scatter<
      inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 2>}> ({
  ^bb0(%old: tensor<f32>, %new: tensor<f32>):
    stablehlo.return %new : tensor<f32>
  }) : (tensor<4x8xf32>, tensor<4x3x2xi32>, tensor<4x3xf32>) -> tensor<4x8xf32>
  return %marked : tensor<4x8xf32>
}
