// RUN: autoshard-opt --autoshard-split-stages %s | filecheck %s
// RUN: autoshard-opt --autoshard-split-stages=defer=true %s | filecheck --check-prefix=DEFER %s

// Two layers on two stages, h = x w0, y = h w1, and something like gradients of both. Forward
// and backward of the last stage are one task; what it gives back is sent. What of the batch a
// micro-batch reads is taken by the task that reads it. Sums start as zeros on their own stage.
// CHECK-LABEL: func.func public @main
// CHECK-SAME:  %arg0: tensor<2x2x4xf32> {autoshard.stage = 0 : i32}
// CHECK-SAME:  %arg1: tensor<4x4xf32> {autoshard.stage = 0 : i32}
// CHECK-SAME:  %arg2: tensor<4x4xf32> {autoshard.stage = 1 : i32}
// CHECK:       %[[SUM0:.*]] = call @stage0_before0() : () -> tensor<4x4xf32>
// CHECK:       %[[SUM1:.*]] = call @stage1_before0() : () -> tensor<4x4xf32>
// CHECK:       %[[LOOP:.*]]:6 = stablehlo.while(%[[M:.*]] = %{{.*}}, %[[X:.*]] = %arg0, %[[W0:.*]] = %arg1, %[[W1:.*]] = %arg2, %[[ACC1:.*]] = %[[SUM1]], %[[ACC0:.*]] = %[[SUM0]])
// CHECK:       %[[F:.*]]:2 = func.call @stage0_loop0(%[[X]], %[[M]], %[[W0]])
// CHECK:       %[[H:.*]] = stablehlo.custom_call @autoshard.transfer(%[[F]]#0) {autoshard.from = 0 : i32, autoshard.to = 1 : i32}
// CHECK:       %[[B:.*]]:2 = func.call @stage1_loop1(%[[H]], %[[W1]], %[[ACC1]])
// CHECK:       %[[G:.*]] = stablehlo.custom_call @autoshard.transfer(%[[B]]#{{.}}) {autoshard.from = 1 : i32, autoshard.to = 0 : i32}
// CHECK:       %[[S:.*]] = func.call @stage0_loop2(%[[F]]#1, %[[G]], %[[ACC0]])
// CHECK:       stablehlo.return %{{.*}}, %[[X]], %[[W0]], %[[W1]], %[[B]]#{{.}}, %[[S]]
// CHECK:       %[[NEW0:.*]] = call @stage0_after0(%arg1, %[[LOOP]]#5)
// CHECK:       %[[NEW1:.*]] = call @stage1_after0(%arg2, %[[LOOP]]#4)
// CHECK:       return %[[NEW0]], %[[NEW1]]
// CHECK:       func.func private @stage1_loop1({{.*}}) {{.*}} attributes {autoshard.level = 1 : i32, autoshard.stage = 1 : i32}

// The gradient of the weights, for which nothing waits, is a task of its own; what is cheap to make
// is made again in it, not kept.
// DEFER:       %[[H:.*]] = stablehlo.custom_call @autoshard.transfer
// DEFER:       %[[I:.*]]:2 = func.call @stage1_loop1(%[[H]], %{{[^,]*}}) : (tensor<2x4xf32>, tensor<4x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
// DEFER:       func.call @stage1_loop1_deferred(%[[H]], %[[I]]#{{.}}, %{{[^,]*}}) : (tensor<2x4xf32>, tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// DEFER:       func.func private @stage1_loop1_deferred{{.*}} attributes {autoshard.deferred
module attributes {autoshard.pipeline_stages = 2 : i32, autoshard.micro_batches = "{\22count\22: 2, \22whole\22: [], \22each\22: []}"} {
  func.func public @main(%x: tensor<2x2x4xf32>, %w0: tensor<4x4xf32>, %w1: tensor<4x4xf32>)
      -> (tensor<4x4xf32> {autoshard.feeds_argument = 1 : i64}, tensor<4x4xf32> {autoshard.feeds_argument = 2 : i64}) {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %empty = stablehlo.constant dense<0.0> : tensor<4x4xf32>
    %l:6 = stablehlo.while(%m = %zero, %xs = %x, %v0 = %w0, %v1 = %w1, %s1 = %empty, %s0 = %empty)
        : tensor<i32>, tensor<2x2x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
        attributes {autoshard.micro_batches}
    cond {
      %two = stablehlo.constant dense<2> : tensor<i32>
      %go = stablehlo.compare LT, %m, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %first = stablehlo.constant dense<0> : tensor<i32>
      %part = stablehlo.dynamic_slice %xs, %first, %m, %first, sizes = [2, 1, 4] {autoshard.stage = 0 : i32, autoshard.level = 0 : i32}
          : (tensor<2x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x1x4xf32>
      %xm = stablehlo.reshape %part {autoshard.stage = 0 : i32, autoshard.level = 0 : i32} : (tensor<2x1x4xf32>) -> tensor<2x4xf32>
      %h = stablehlo.dot_general %xm, %v0, contracting_dims = [1] x [0] {autoshard.stage = 0 : i32, autoshard.level = 0 : i32}
          : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %ones = stablehlo.constant dense<1.0> : tensor<2x4xf32>
      %h1 = stablehlo.add %h, %ones {autoshard.stage = 1 : i32, autoshard.level = 1 : i32} : tensor<2x4xf32>
      %y = stablehlo.dot_general %h, %v1, contracting_dims = [1] x [0] {autoshard.stage = 1 : i32, autoshard.level = 1 : i32}
          : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %y1 = stablehlo.add %y, %ones {autoshard.stage = 1 : i32, autoshard.level = 1 : i32} : tensor<2x4xf32>
      %g1 = stablehlo.dot_general %h1, %y1, contracting_dims = [0] x [0] {autoshard.stage = 1 : i32, autoshard.level = 1 : i32}
          : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<4x4xf32>
      %gh = stablehlo.dot_general %y1, %v1, contracting_dims = [1] x [1] {autoshard.stage = 1 : i32, autoshard.level = 1 : i32}
          : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %n1 = stablehlo.add %s1, %g1 {autoshard.stage = 1 : i32, autoshard.level = 1 : i32} : tensor<4x4xf32>
      %g0 = stablehlo.dot_general %xm, %gh, contracting_dims = [0] x [0] {autoshard.stage = 0 : i32, autoshard.level = 2 : i32}
          : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<4x4xf32>
      %n0 = stablehlo.add %s0, %g0 {autoshard.stage = 0 : i32, autoshard.level = 2 : i32} : tensor<4x4xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %n = stablehlo.add %m, %one : tensor<i32>
      stablehlo.return %n, %xs, %v0, %v1, %n1, %n0 : tensor<i32>, tensor<2x2x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
    }
    %u0 = stablehlo.subtract %w0, %l#5 {autoshard.stage = 0 : i32, autoshard.level = 0 : i32} : tensor<4x4xf32>
    %u1 = stablehlo.subtract %w1, %l#4 {autoshard.stage = 1 : i32, autoshard.level = 0 : i32} : tensor<4x4xf32>
    return %u0, %u1 : tensor<4x4xf32>, tensor<4x4xf32>
  }
}
