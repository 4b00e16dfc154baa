// RUN: autoshard-opt --autoshard-split-loops='stages=2 cluster=cpu:2 batch=x' %s | filecheck %s

// What a loop reads from around it is read by each of its parts, and the number of the trip goes on
// in the second one: 2 is added to it, but not to the row.
// CHECK-LABEL: func.func public @main
// CHECK-SAME:  (%[[X:.*]]: tensor<8x4xf32>, %[[S:.*]]: tensor<8x4xf32>, %[[W0:.*]]: tensor<2x4x4xf32>, %[[W1:.*]]: tensor<2x4x4xf32>)
// CHECK:       stablehlo.while({{.*}} = %[[W0]])
// CHECK:         stablehlo.multiply %{{.*}}, %[[S]]
// CHECK:       stablehlo.while(%[[N:[^ ]*]] = %{{.*}}, {{.*}} = %[[W1]])
// CHECK:       } do {
// CHECK:         %[[TWO:[^ ]*]] = stablehlo.constant dense<2> : tensor<i32>
// CHECK:         %[[TRIP:[^ ]*]] = stablehlo.add %[[N]], %[[TWO]]
// CHECK:         stablehlo.dynamic_slice %{{.*}}, %[[N]],
// CHECK:         stablehlo.multiply %{{.*}}, %[[S]]
// CHECK:         stablehlo.convert %[[TRIP]]
func.func public @main(%x: tensor<8x4xf32> loc("x"), %s: tensor<8x4xf32> loc("s"),
    %w: tensor<4x4x4xf32> loc("w")) -> tensor<8x4xf32> {
  %start = stablehlo.constant dense<0> : tensor<i32>
  %f:3 = stablehlo.while(%n = %start, %h = %x, %a = %w) : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>
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
    %scaled = stablehlo.multiply %y, %s : tensor<8x4xf32>
    %number = stablehlo.convert %n : (tensor<i32>) -> tensor<f32>
    %many = stablehlo.broadcast_in_dim %number, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
    %moved = stablehlo.add %scaled, %many : tensor<8x4xf32>
    %next = stablehlo.add %n, %one : tensor<i32>
    stablehlo.return %next, %moved, %a : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>
  }
  return %f#1 : tensor<8x4xf32>
}
