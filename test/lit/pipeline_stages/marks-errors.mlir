// RUN: not autoshard-opt --autoshard-micro-batch='micro-batches=2 batch=0' \
// RUN:     --autoshard-pipeline-stages='stages=2 cluster=cpu:2' %s 2>&1 | filecheck %s

// What is marked first leads to what is marked next, but to an earlier stage.
// CHECK: net.py:4
// CHECK-SAME: error: a value is marked as on stage 0, and other marks lead to stage 1
// CHECK-SAME: Mark what is computed first with smaller numbers.
func.func public @main(%x: tensor<8x4xf32>, %a: tensor<4x4xf32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %h = stablehlo.dot_general %x, %a, contracting_dims = [1] x [0]
      : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %m = stablehlo.custom_call @autoshard.pipeline_stage(%h) {autoshard.stage = 1 : i32}
      : (tensor<8x4xf32>) -> tensor<8x4xf32> loc("net.py":2:1)
  %t = stablehlo.tanh %m : tensor<8x4xf32>
  %n = stablehlo.custom_call @autoshard.pipeline_stage(%t) {autoshard.stage = 0 : i32}
      : (tensor<8x4xf32>) -> tensor<8x4xf32> loc("net.py":4:1)
  %loss = stablehlo.reduce(%n init: %zero) applies stablehlo.add across dimensions = [0, 1]
      : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  return %loss : tensor<f32>
}
