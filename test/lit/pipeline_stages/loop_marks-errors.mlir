// RUN: not autoshard-opt --autoshard-micro-batch='micro-batches=2 batch=0' \
// RUN:     --autoshard-pipeline-stages='stages=2 cluster=cpu:2' %s 2>&1 | filecheck %s

// A loop with a mark inside is on its stage as a whole, and is behind what is marked as later.
// CHECK: net.py:4
// CHECK-SAME: error: a value is marked as on stage 0, and other marks lead to stage 1
func.func public @main(%x: tensor<8x4xf32>, %a: tensor<4x4xf32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %start = stablehlo.constant dense<0> : tensor<i32>
  %h = stablehlo.dot_general %x, %a, contracting_dims = [1] x [0]
      : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %m = stablehlo.custom_call @autoshard.pipeline_stage(%h) {autoshard.stage = 1 : i32}
      : (tensor<8x4xf32>) -> tensor<8x4xf32> loc("net.py":2:1)
  %f:2 = stablehlo.while(%n = %start, %c = %m) : tensor<i32>, tensor<8x4xf32>
  cond {
    %trips = stablehlo.constant dense<3> : tensor<i32>
    %more = stablehlo.compare LT, %n, %trips : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %y = stablehlo.dot_general %c, %a, contracting_dims = [1] x [0]
        : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    %k = stablehlo.custom_call @autoshard.pipeline_stage(%y) {autoshard.stage = 0 : i32}
        : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %next = stablehlo.add %n, %one : tensor<i32>
    stablehlo.return %next, %k : tensor<i32>, tensor<8x4xf32>
  } loc("net.py":4:1)
  %loss = stablehlo.reduce(%f#1 init: %zero) applies stablehlo.add across dimensions = [0, 1]
      : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  return %loss : tensor<f32>
}
