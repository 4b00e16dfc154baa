// RUN: autoshard-opt --autoshard-split-loops='stages=2 cluster=cpu:2 batch=x' %s | filecheck %s

// A loop over four layers and the one of its gradients, which goes back, are two loops each, on
// stages of their own. The stack of weights, what the first loop keeps for the second one, and the
// gradients have parts; so have the new weights, and the sum of squares is the sum of two.
// CHECK-LABEL: func.func public @main
// CHECK-SAME:  (%[[X:.*]]: tensor<8x4xf32>, %[[W0:.*]]: tensor<2x4x4xf32> {tf.aliasing_output = 0 : i32}, %[[W1:.*]]: tensor<2x4x4xf32> {tf.aliasing_output = 1 : i32})
// CHECK-SAME:  -> (tensor<2x4x4xf32>, tensor<2x4x4xf32>, tensor<f32>)
// CHECK:       %[[F0:.*]]:4 = stablehlo.while({{.*}} = %{{.*}}, {{.*}} = %[[X]], {{.*}} = %[[W0]], {{.*}} = %{{.*}}) {{.*}}autoshard.stage = 0 : i32
// CHECK:         stablehlo.constant dense<2> : tensor<i32>
// CHECK:       %[[F1:.*]]:4 = stablehlo.while({{.*}} = %{{.*}}, {{.*}} = %[[F0]]#1, {{.*}} = %[[W1]], {{.*}} = %{{.*}}) {{.*}}autoshard.stage = 1 : i32
// CHECK:       %[[B1:.*]]:5 = stablehlo.while({{.*}} = %{{.*}}, {{.*}} = %[[F1]]#1, {{.*}} = %[[W1]], {{.*}} = %[[F1]]#3, {{.*}} = %{{.*}}) {{.*}}autoshard.stage = 1 : i32
// CHECK:         stablehlo.constant dense<2> : tensor<i32>
// CHECK:         stablehlo.subtract
// CHECK:       %[[B0:.*]]:5 = stablehlo.while({{.*}} = %{{.*}}, {{.*}} = %[[B1]]#1, {{.*}} = %[[W0]], {{.*}} = %[[F0]]#3, {{.*}} = %{{.*}}) {{.*}}autoshard.stage = 0 : i32
// CHECK:       %[[N0:.*]] = stablehlo.subtract %[[W0]], %[[B0]]#4
// CHECK:       %[[N1:.*]] = stablehlo.subtract %[[W1]], %[[B1]]#4
// CHECK:       %[[S0:.*]] = stablehlo.reduce(%[[N0]]
// CHECK:       %[[S1:.*]] = stablehlo.reduce(%[[N1]]
// CHECK:       %[[S:.*]] = stablehlo.add %[[S0]], %[[S1]] : tensor<f32>
// CHECK:       return %[[N0]], %[[N1]], %[[S]]
func.func public @main(%x: tensor<8x4xf32> loc("x"),
    %w: tensor<4x4x4xf32> {tf.aliasing_output = 0 : i32} loc("w"))
    -> (tensor<4x4x4xf32>, tensor<f32>) {
  %start = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %kept = stablehlo.constant dense<0.0> : tensor<4x8x4xf32>
  %none = stablehlo.constant dense<0.0> : tensor<4x4x4xf32>
  %f:4 = stablehlo.while(%n = %start, %h = %x, %a = %w, %k = %kept)
      : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>, tensor<4x8x4xf32>
  cond {
    %trips = stablehlo.constant dense<4> : tensor<i32>
    %more = stablehlo.compare LT, %n, %trips : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %z = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %row = stablehlo.dynamic_slice %a, %n, %z, %z, sizes = [1, 4, 4]
        : (tensor<4x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    %own = stablehlo.reshape %row : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %y = stablehlo.dot_general %h, %own, contracting_dims = [1] x [0]
        : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    %keep = stablehlo.reshape %h : (tensor<8x4xf32>) -> tensor<1x8x4xf32>
    %k1 = stablehlo.dynamic_update_slice %k, %keep, %n, %z, %z
        : (tensor<4x8x4xf32>, tensor<1x8x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<4x8x4xf32>
    %next = stablehlo.add %n, %one : tensor<i32>
    stablehlo.return %next, %y, %a, %k1 : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>, tensor<4x8x4xf32>
  }
  %b:5 = stablehlo.while(%n = %start, %g = %f#1, %a = %w, %k = %f#3, %d = %none)
      : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>, tensor<4x8x4xf32>, tensor<4x4x4xf32>
  cond {
    %trips = stablehlo.constant dense<4> : tensor<i32>
    %more = stablehlo.compare LT, %n, %trips : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %z = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %last = stablehlo.constant dense<3> : tensor<i32>
    %at = stablehlo.subtract %last, %n : tensor<i32>
    %row = stablehlo.dynamic_slice %a, %at, %z, %z, sizes = [1, 4, 4]
        : (tensor<4x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    %own = stablehlo.reshape %row : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %was = stablehlo.dynamic_slice %k, %at, %z, %z, sizes = [1, 8, 4]
        : (tensor<4x8x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x4xf32>
    %h = stablehlo.reshape %was : (tensor<1x8x4xf32>) -> tensor<8x4xf32>
    %dw = stablehlo.dot_general %h, %g, contracting_dims = [0] x [0]
        : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    %dh = stablehlo.dot_general %g, %own, contracting_dims = [1] x [1]
        : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    %put = stablehlo.reshape %dw : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
    %d1 = stablehlo.dynamic_update_slice %d, %put, %at, %z, %z
        : (tensor<4x4x4xf32>, tensor<1x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<4x4x4xf32>
    %next = stablehlo.add %n, %one : tensor<i32>
    stablehlo.return %next, %dh, %a, %k, %d1
        : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>, tensor<4x8x4xf32>, tensor<4x4x4xf32>
  }
  %new = stablehlo.subtract %w, %b#4 : tensor<4x4x4xf32>
  %sum = stablehlo.reduce(%new init: %zero) applies stablehlo.add across dimensions = [0, 1, 2]
      : (tensor<4x4x4xf32>, tensor<f32>) -> tensor<f32>
  return %new, %sum : tensor<4x4x4xf32>, tensor<f32>
}
