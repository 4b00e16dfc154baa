// RUN: autoshard-opt --autoshard-recursive-programming='cluster=cpu:2 compiler=xla-tpu-0.0.42:without=matmul.rounds_operands mesh=data=2' --autoshard-recompute='memory-limit=80MiB' %s | filecheck %s

// %a is computed again from %h, which is kept: what a compiler stores of a matmul is what it adds
// to it before it is written, so the barrier takes the sum and not the bare product.
// CHECK-LABEL: func.func public @main
// CHECK:       stablehlo.dot_general %arg0, %arg1
// CHECK:       [[H:%[0-9]+]] = stablehlo.add
// CHECK:       [[B:%[0-9]+]]:3 = stablehlo.optimization_barrier {{.*}} [[H]], %arg3,
// CHECK-NEXT:  [[A:%[0-9]+]] = stablehlo.dot_general [[B]]#0, [[B]]#1
func.func public @main(%x: tensor<2048x4096xf32>, %w: tensor<4096x512xf32>, %b: tensor<512xf32>, %v: tensor<512x512xf32>,
                       %u: tensor<512x2048xf32>) -> (tensor<2048x512xf32>, tensor<2048x512xf32>) {
  %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<2048x4096xf32>, tensor<4096x512xf32>) -> tensor<2048x512xf32>
  %bias = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<512xf32>) -> tensor<2048x512xf32>
  %h = stablehlo.add %p, %bias : tensor<2048x512xf32>
  %a = stablehlo.dot_general %h, %v, contracting_dims = [1] x [0]
      : (tensor<2048x512xf32>, tensor<512x512xf32>) -> tensor<2048x512xf32>
  %z = stablehlo.dot_general %a, %u, contracting_dims = [1] x [0]
      : (tensor<2048x512xf32>, tensor<512x2048xf32>) -> tensor<2048x2048xf32>
  %t = stablehlo.dot_general %z, %z, contracting_dims = [1] x [1]
      : (tensor<2048x2048xf32>, tensor<2048x2048xf32>) -> tensor<2048x2048xf32>
  %r = stablehlo.dot_general %t, %a, contracting_dims = [1] x [0]
      : (tensor<2048x2048xf32>, tensor<2048x512xf32>) -> tensor<2048x512xf32>
  %s = stablehlo.dot_general %t, %h, contracting_dims = [1] x [0]
      : (tensor<2048x2048xf32>, tensor<2048x512xf32>) -> tensor<2048x512xf32>
  %q = stablehlo.dot_general %r, %s, contracting_dims = [1] x [1]
      : (tensor<2048x512xf32>, tensor<2048x512xf32>) -> tensor<2048x2048xf32>
  %o = stablehlo.dot_general %q, %h, contracting_dims = [1] x [0]
      : (tensor<2048x2048xf32>, tensor<2048x512xf32>) -> tensor<2048x512xf32>
  return %o, %h : tensor<2048x512xf32>, tensor<2048x512xf32>
}
