// RUN: not autoshard-opt --autoshard-micro-batch='micro-batches=4 batch=0' \
// RUN:     --autoshard-pipeline-stages='stages=3 cluster=cpu:3' %s 2>&1 | filecheck %s --check-prefix=FEW
// RUN: not autoshard-opt --autoshard-micro-batch='micro-batches=2 batch=0' \
// RUN:     --autoshard-pipeline-stages='stages=3 cluster=cpu:3' %s 2>&1 | filecheck %s --check-prefix=SMALL
// RUN: not autoshard-opt --autoshard-micro-batch='micro-batches=4 batch=0' \
// RUN:     --autoshard-pipeline-stages='stages=3 cluster=cpu:4' %s 2>&1 | filecheck %s --check-prefix=DEVICES
// RUN: not autoshard-opt --autoshard-pipeline-stages='stages=2 cluster=cpu:2' %s 2>&1 | filecheck %s --check-prefix=LOOP

// FEW:     error: stages=3: the step has 2 products of matrices, loops and marks
// SMALL:   error: micro_batches=2 is smaller than stages=3
// DEVICES: error: stages=3: the 4 devices of cluster cpu:4 (4) do not fall on 3 stages{{.*}}Give one of 2, 4 stages.
// LOOP:    error: the step has no loop over micro-batches
func.func public @main(%x: tensor<8x4xf32>, %a: tensor<4x4xf32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %h = stablehlo.dot_general %x, %a, contracting_dims = [1] x [0]
      : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %y = stablehlo.dot_general %h, %a, contracting_dims = [1] x [0]
      : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %loss = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0, 1]
      : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  return %loss : tensor<f32>
}
