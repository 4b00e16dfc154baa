// RUN: autoshard-opt --autoshard-micro-batch='micro-batches=2 batch=0' \
// RUN:     --autoshard-pipeline-stages='stages=2 chunks=2 cluster=cpu:2' %s | filecheck %s

// Four parts on two stages in turn; the mark is the number of a part, the last one of stage 1. The
// weights that are marked before the loop are on its stage.
// CHECK:       autoshard.pipeline_chunks = 2 : i32, autoshard.pipeline_stages = 2 : i32
// CHECK-LABEL: func.func public @main
// CHECK:       stablehlo.transpose {{.*}}autoshard.stage = 1 : i32
// CHECK:       stablehlo.while
// CHECK:       stablehlo.dot_general {{.*}}autoshard.level = 0 : i32, autoshard.stage = 0 : i32
// CHECK:       stablehlo.dot_general {{.*}}autoshard.level = 1 : i32, autoshard.stage = 1 : i32
// CHECK:       stablehlo.dot_general {{.*}}autoshard.level = 2 : i32, autoshard.stage = 0 : i32
// CHECK:       stablehlo.dot_general {{.*}}autoshard.level = 3 : i32, autoshard.stage = 1 : i32
func.func public @main(%x: tensor<8x4xf32>, %a: tensor<4x4xf32>, %b: tensor<4x4xf32>)
    -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %p = stablehlo.dot_general %x, %a, contracting_dims = [1] x [0]
      : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %q = stablehlo.dot_general %p, %a, contracting_dims = [1] x [0]
      : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %r = stablehlo.dot_general %q, %a, contracting_dims = [1] x [0]
      : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %c = stablehlo.transpose %b, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %m = stablehlo.custom_call @autoshard.pipeline_stage(%c) {autoshard.stage = 3 : i32}
      : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = stablehlo.dot_general %r, %m, contracting_dims = [1] x [0]
      : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %loss = stablehlo.reduce(%s init: %zero) applies stablehlo.add across dimensions = [0, 1]
      : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  return %loss : tensor<f32>
}
