// RUN: not autoshard-opt --autoshard-micro-batch='micro-batches=2 batch=0' %s 2>&1 | filecheck %s

// Rows that are numbered from the last one on go into other examples.
// CHECK: moe.py:7
// CHECK-SAME: error: micro_batches=2: scatter needs all examples at once
// CHECK-SAME: as dot_general (moe.py:6:1) leads to it
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
  %turned = stablehlo.reverse %rows, dims = [0] : tensor<4x1xi32>
  %all = stablehlo.broadcast_in_dim %turned, dims = [0, 1] : (tensor<4x1xi32>) -> tensor<4x3x1xi32>
  %columns = stablehlo.iota dim = 1 : tensor<4x3x1xi32>
  %at = stablehlo.concatenate %all, %columns, dim = 2
      : (tensor<4x3x1xi32>, tensor<4x3x1xi32>) -> tensor<4x3x2xi32>
  %marked = "stablehlo.scatter"(%zeros, %at, %h) <{scatter_dimension_numbers = #stablehlo.scatter<
      inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 2>}> ({
  ^bb0(%old: tensor<f32>, %new: tensor<f32>):
    stablehlo.return %new : tensor<f32>
  }) : (tensor<4x8xf32>, tensor<4x3x2xi32>, tensor<4x3xf32>) -> tensor<4x8xf32> loc("moe.py":7:1)
  return %marked : tensor<4x8xf32>
}
