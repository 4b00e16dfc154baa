// RUN: not autoshard-opt --autoshard-micro-batch='micro-batches=2 batch=0' \
// RUN:     --autoshard-pipeline-stages='stages=2 chunks=2 cluster=cpu:2' %s 2>&1 | filecheck %s --check-prefix=FEW
// RUN: not autoshard-opt --autoshard-micro-batch='micro-batches=2 batch=0' \
// RUN:     --autoshard-pipeline-stages='stages=2 chunks=0 cluster=cpu:2' %s 2>&1 | filecheck %s --check-prefix=NONE

// FEW:  error: stages=2 chunks=2: the step has 2 products of matrices, loops and marks on its way forward, and each of 4 parts needs one. Give fewer stages or chunks
// NONE: error: autoshard-pipeline-stages: stages=2 chunks=0 {{.*}}: expected 1 or more.
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
