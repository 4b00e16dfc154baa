// RUN: autoshard-opt --autoshard-micro-batch='micro-batches=2 batch=0' \
// RUN:     --autoshard-pipeline-stages='stages=2 cluster=cpu:2' %s | filecheck %s

// A mark says where the stages meet; what leads to it comes before, and the gradient goes back the
// same way. The last stage goes forward and back at once, so that the first one is back at level 2.
// The mark is gone.
// CHECK:       autoshard.pipeline_stages = 2 : i32
// CHECK-LABEL: func.func public @main
// CHECK:       stablehlo.while
// CHECK:       stablehlo.dot_general %{{.*}}, %[[A:.*]], contracting_dims = [1] x [0] {autoshard.level = 0 : i32, autoshard.stage = 0 : i32}
// CHECK:       stablehlo.dot_general {{.*}}, contracting_dims = [1] x [0] {autoshard.level = 1 : i32, autoshard.stage = 1 : i32}
// CHECK-NOT:   custom_call
// CHECK:       stablehlo.dot_general {{.*}}, contracting_dims = [1] x [1] {autoshard.level = 1 : i32, autoshard.stage = 1 : i32}
// CHECK:       stablehlo.dot_general {{.*}}, contracting_dims = [0] x [0] {autoshard.level = 2 : i32, autoshard.stage = 0 : i32}
// CHECK:       stablehlo.subtract %arg1, {{.*}}autoshard.level = 0 : i32, autoshard.stage = 0 : i32
func.func public @main(%x: tensor<8x4xf32>, %a: tensor<4x4xf32>, %b: tensor<4x2xf32>)
    -> (tensor<4x4xf32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %h = stablehlo.dot_general %x, %a, contracting_dims = [1] x [0]
      : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %t = stablehlo.tanh %h : tensor<8x4xf32>
  %m = stablehlo.custom_call @autoshard.pipeline_stage(%t) {autoshard.stage = 1 : i32}
      : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %y = stablehlo.dot_general %m, %b, contracting_dims = [1] x [0]
      : (tensor<8x4xf32>, tensor<4x2xf32>) -> tensor<8x2xf32>
  %squares = stablehlo.multiply %y, %y : tensor<8x2xf32>
  %loss = stablehlo.reduce(%squares init: %zero) applies stablehlo.add across dimensions = [0, 1]
      : (tensor<8x2xf32>, tensor<f32>) -> tensor<f32>
  %dh = stablehlo.dot_general %y, %b, contracting_dims = [1] x [1]
      : (tensor<8x2xf32>, tensor<4x2xf32>) -> tensor<8x4xf32>
  %dt = stablehlo.multiply %dh, %t : tensor<8x4xf32>
  %da = stablehlo.dot_general %x, %dt, contracting_dims = [0] x [0]
      : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %new = stablehlo.subtract %a, %da : tensor<4x4xf32>
  return %new, %loss : tensor<4x4xf32>, tensor<f32>
}
