// RUN: autoshard-opt --autoshard-micro-batch='micro-batches=2 batch=0' \
// RUN:     --autoshard-pipeline-stages='stages=2 cluster=cpu:2' \
// RUN:     --autoshard-print-schedule='cluster=cpu:2 width=60' %s 2>&1 | filecheck %s
// RUN: autoshard-opt --autoshard-micro-batch='micro-batches=2 batch=0' \
// RUN:     --autoshard-pipeline-stages='stages=2 cluster=cpu:2' \
// RUN:     --autoshard-print-schedule='cluster=cpu:2 schedule=gpipe micro-batches=4' %s 2>&1 \
// RUN:     | filecheck %s --check-prefix=FOUR

// The first stage goes forward and back, the last one both at once.
// CHECK:      2 stages, 2 micro-batches: {{.*}} bubble {{.*}}, no schedule is under
// CHECK-NEXT: stage 0 {{.*}}F0{{.*}}F1{{.*}}B0{{.*}}B1{{.*}}keeps 2
// CHECK-NEXT: stage 1 {{.*}}FB0{{.*}}FB1{{.*}}

// FOUR:      2 stages, 4 micro-batches
// FOUR-NEXT: stage 0 {{.*}}keeps 4
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
