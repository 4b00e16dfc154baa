// RUN: not autoshard-opt --autoshard-micro-batch='micro-batches=2 batch=0' %s 2>&1 | filecheck %s

// A mean over the batch in the middle of the step: each micro-batch would need all others.
// CHECK: norm.py:3
// CHECK-SAME: error: micro_batches=2: reduce adds up over the batch, and subtract (norm.py:4:1) reads the sum before it is finished
// CHECK-SAME: It cannot be computed of the whole batch before, either, as dot_general (norm.py:2:1) leads to it.
// CHECK-SAME: give per_micro_batch=("norm.py:3",)
func.func public @main(%x: tensor<8x4xf32>, %w: tensor<4x2xf32>) -> tensor<8x2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8x4xf32>, tensor<4x2xf32>) -> tensor<8x2xf32> loc("norm.py":2:1)
  %sum = stablehlo.reduce(%h init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<8x2xf32>, tensor<f32>) -> tensor<2xf32> loc("norm.py":3:1)
  %all = stablehlo.broadcast_in_dim %sum, dims = [1] : (tensor<2xf32>) -> tensor<8x2xf32>
  %y = stablehlo.subtract %h, %all : tensor<8x2xf32> loc("norm.py":4:1)
  return %y : tensor<8x2xf32>
}
