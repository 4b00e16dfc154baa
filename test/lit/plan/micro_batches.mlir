// RUN: autoshard-opt --autoshard-plan='cluster=v5e:2x2 micro-batches=auto memory-limit=6MiB' %s | filecheck %s
// RUN: autoshard-opt --autoshard-plan='cluster=v5e:2x2 micro-batches=auto batch=x' %s | filecheck %s --check-prefix=FREE
// RUN: autoshard-opt --autoshard-plan='cluster=v5e:2x2 micro-batches=2' %s | filecheck %s --check-prefix=TWO

// Where the whole batch does not fit, the fastest number of parts that does is taken; where it fits,
// the batch stays whole. A number that is given is taken as it is.
// CHECK: \22tried_micro_batches\22: [{\22micro_batches\22: 1, \22outcome\22: \22does not fit\22
// CHECK-LABEL: func.func public @main
// CHECK: stablehlo.while
// FREE: \22tried_micro_batches\22: [{\22micro_batches\22: 1, \22outcome\22: \22taken\22
// FREE-LABEL: func.func public @main
// FREE-NOT: stablehlo.while
// TWO-LABEL: func.func public @main
// TWO: stablehlo.while
func.func public @main(
    %w: tensor<256x1024xf32> {tf.aliasing_output = 0 : i32} loc("w"),
    %x: tensor<8192x256xf32> loc("x")) -> tensor<256x1024xf32> {
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8192x256xf32>, tensor<256x1024xf32>) -> tensor<8192x1024xf32>
  %t = stablehlo.tanh %h : tensor<8192x1024xf32>
  %g = stablehlo.dot_general %x, %t, contracting_dims = [0] x [0]
      : (tensor<8192x256xf32>, tensor<8192x1024xf32>) -> tensor<256x1024xf32>
  %u = stablehlo.subtract %w, %g : tensor<256x1024xf32>
  return %u : tensor<256x1024xf32>
}
