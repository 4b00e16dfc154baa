// RUN: autoshard-opt --autoshard-lockstep='stages=2 micro-batches=4 batch=x' %s | filecheck %s

// Of four layers each stage has two. What comes before the loop, stages do for two of the four
// micro-batches each; then a micro-batch is with stage 1 one turn after stage 0, in five turns.
// CHECK-LABEL: func.func public @main(
// CHECK-SAME:  tensor<8x4xf32>
// CHECK-SAME:  %arg2: tensor<2x4x4xf32> {autoshard.stage_rows = 0 : i32}
func.func public @main(%x: tensor<8x4xf32> loc("x"), %a: tensor<4x4xf32> loc("a"), %w: tensor<4x4x4xf32> loc("w"))
    -> (tensor<f32>, tensor<f32>) {
  // CHECK:     stablehlo.custom_call @autoshard.stage_number() : () -> tensor<i32>
  // CHECK:     %[[each:.*]]:{{.*}} = stablehlo.while
  // CHECK:       stablehlo.constant dense<2>
  // CHECK:       stablehlo.dot_general {{.*}} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  // CHECK:     %[[feed:.*]] = stablehlo.custom_call @autoshard.stage_gather({{.*}}) : (tensor<2x2x4xf32>) -> tensor<4x2x4xf32>
  %first = stablehlo.dot_general %x, %a, contracting_dims = [1] x [0]
      : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %start = stablehlo.constant dense<0> : tensor<i32>
  // CHECK:     stablehlo.while
  // CHECK:       stablehlo.constant dense<5>
  // CHECK:       %[[batch:.*]] = stablehlo.subtract %{{.*}}, %{{.*}} : tensor<i32>
  // CHECK:       %[[one:.*]] = stablehlo.dynamic_slice
  // CHECK:       %[[given:.*]] = stablehlo.select %{{.*}}, %{{.*}}, %{{.*}} : tensor<i1>, tensor<2x4xf32>
  // CHECK:       %[[made:.*]]:3 = stablehlo.while({{.*}} = %[[given]]{{.*}}) {{.*}}autoshard.lockstep = "up"
  // CHECK:         stablehlo.constant dense<2>
  // CHECK:       stablehlo.custom_call @autoshard.stage_permute(%[[made]]#1) {backend_config = "up"}
  %f:3 = stablehlo.while(%n = %start, %h = %first, %v = %w) : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>
  cond {
    %trips = stablehlo.constant dense<4> : tensor<i32>
    %more = stablehlo.compare LT, %n, %trips : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %z = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %row = stablehlo.dynamic_slice %v, %n, %z, %z, sizes = [1, 4, 4]
        : (tensor<4x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    %own = stablehlo.reshape %row : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %y = stablehlo.dot_general %h, %own, contracting_dims = [1] x [0]
        : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    %next = stablehlo.add %n, %one : tensor<i32>
    stablehlo.return %next, %y, %v : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>
  }
  // What the last stage has made goes to the stage that goes on with the micro-batch.
  // CHECK:     %[[last:.*]] = stablehlo.custom_call @autoshard.stage_exchange
  // CHECK:     stablehlo.slice %[[last]] [2:4,
  // CHECK:     stablehlo.while
  // CHECK:     stablehlo.custom_call @autoshard.stage_sum({{.*}}) {backend_config = "stablehlo.add"}
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %l = stablehlo.reduce(%f#1 init: %zero) applies stablehlo.add across dimensions = [0, 1]
      : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  // A sum over all layers is that of each stage, put together.
  // CHECK:     %[[own:.*]] = stablehlo.reduce(%arg2 init
  // CHECK:     stablehlo.custom_call @autoshard.stage_sum(%[[own]])
  %s = stablehlo.reduce(%w init: %zero) applies stablehlo.add across dimensions = [0, 1, 2]
      : (tensor<4x4x4xf32>, tensor<f32>) -> tensor<f32>
  return %l, %s : tensor<f32>, tensor<f32>
}
