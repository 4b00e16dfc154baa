// RUN: not autoshard-opt --autoshard-recursive-programming='cluster=v5e:2x2 memory-limit=1MiB' %s 2>&1 | filecheck %s

// The error says by how much nothing fits, which tensors fill the memory, and what helps.
// CHECK:      memory-errors.mlir: error: no plan fits: the one that needs least needs {{[0-9.]+}} MiB on each of 4 devices, {{[0-9.]+}} MiB more than the 1 MiB allowed.
// CHECK-SAME: Largest tensors at that moment, on one device: 4 MiB argument 0 2048x2048xf32
// CHECK-SAME: Most of it enters the step: use more chips, or keep parameters or optimizer state in bfloat16, and donate them.
func.func public @main(%w: tensor<2048x2048xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<8x2048xf32>)
    -> (tensor<2048x2048xf32>, tensor<8x2048xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x2048xf32>, tensor<2048x2048xf32>) -> tensor<8x2048xf32>
  return %w, %0 : tensor<2048x2048xf32>, tensor<8x2048xf32>
}
