// RUN: not autoshard-opt --autoshard-plan='cluster=v5e:2x2 micro-batches=many' %s 2>&1 | filecheck %s --check-prefix=MANY
// RUN: not autoshard-opt --autoshard-plan='cluster=v5e:2x2 micro-batches=0' %s 2>&1 | filecheck %s --check-prefix=ZERO
// RUN: not autoshard-opt --autoshard-plan='cluster=v5e:2x2 micro-batches=auto batch=y' %s 2>&1 | filecheck %s --check-prefix=NAME
// RUN: not autoshard-opt --autoshard-plan='cluster=v5e:2x2 micro-batches=auto batch=x memory-limit=100KiB' %s 2>&1 | filecheck %s --check-prefix=FULL

// Numbers that are none, a batch that is not there, and a step whose examples meet: it stays whole,
// and the error says why that does not help.
// MANY: error: autoshard-plan: option micro-batches=many: expected integer or auto.
// ZERO: error: autoshard-micro-batch: option micro-batches=0 is out of range. Give 1 or more.
// NAME: error: autoshard-micro-batch: no argument is called y; there are 2: w, x.
// FULL: error: no plan fits
// FULL-SAME: micro_batches='auto' does not make it fit: it needs {{[0-9.]+}} KiB with 1;
// FULL-SAME: micro_batches-errors.mlir:20:10: micro_batches=2: dot_general combines examples of the batch with one another.
func.func public @main(
    %w: tensor<256x256xf32> {tf.aliasing_output = 0 : i32} loc("w"),
    %x: tensor<512x256xf32> loc("x")) -> (tensor<256x256xf32>, tensor<512x512xf32>) {
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<512x256xf32>, tensor<256x256xf32>) -> tensor<512x256xf32>
  %t = stablehlo.tanh %h : tensor<512x256xf32>
  %all = stablehlo.dot_general %t, %t, contracting_dims = [1] x [1]
      : (tensor<512x256xf32>, tensor<512x256xf32>) -> tensor<512x512xf32>
  return %w, %all : tensor<256x256xf32>, tensor<512x512xf32>
}
