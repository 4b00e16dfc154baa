// RUN: autoshard-opt --autoshard-split-loops='stages=2 cluster=cpu:2 batch=x' %s | filecheck %s

// An array with a row a trip that the loop also hands on whole, in another slot or from a branch, is
// no stack: it stays one, and a part takes the row that the trip of the whole loop has. The weights
// of both loops are cut.
// CHECK-LABEL: func.func public @main
// CHECK-SAME:  (%{{.*}}: tensor<8x4xf32>, %[[V0:.*]]: tensor<2x4x4xf32>, %[[V1:.*]]: tensor<2x4x4xf32>, %[[W:.*]]: tensor<4x4x4xf32>)
// CHECK:       stablehlo.while({{.*}} = %[[V0]], {{.*}} = %[[W]], {{.*}}) {{.*}}autoshard.stage = 0 : i32
// CHECK:       stablehlo.while(%[[N:[^ ]*]] = %{{.*}}, {{.*}} = %[[V1]], %[[A:[^ ]*]] = %[[W]], {{.*}}) {{.*}}autoshard.stage = 1 : i32
// CHECK:         %[[TWO:[^ ]*]] = stablehlo.constant dense<2> : tensor<i32>
// CHECK:         %[[TRIP:[^ ]*]] = stablehlo.add %[[N]], %[[TWO]]
// CHECK:         stablehlo.dynamic_slice %{{.*}}, %[[N]],
// CHECK:         stablehlo.dynamic_slice %[[A]], %[[TRIP]],
func.func public @main(%x: tensor<8x4xf32> loc("x"), %v: tensor<4x4x4xf32> loc("v"),
    %w: tensor<4x4x4xf32> loc("w")) -> (tensor<8x4xf32>, tensor<4x4x4xf32>, tensor<4x4x4xf32>) {
  %start = stablehlo.constant dense<0> : tensor<i32>
  %none = stablehlo.constant dense<0.0> : tensor<4x4x4xf32>
  %f:6 = stablehlo.while(%n = %start, %h = %x, %b = %v, %a = %w, %c = %none, %d = %none)
      : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>, tensor<4x4x4xf32>, tensor<4x4x4xf32>, tensor<4x4x4xf32>
  cond {
    %trips = stablehlo.constant dense<4> : tensor<i32>
    %more = stablehlo.compare LT, %n, %trips : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %z = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %row = stablehlo.dynamic_slice %b, %n, %z, %z, sizes = [1, 4, 4]
        : (tensor<4x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    %own = stablehlo.reshape %row : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %y = stablehlo.dot_general %h, %own, contracting_dims = [1] x [0]
        : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    %other = stablehlo.dynamic_slice %a, %n, %z, %z, sizes = [1, 4, 4]
        : (tensor<4x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    %its = stablehlo.reshape %other : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %u = stablehlo.dot_general %y, %its, contracting_dims = [1] x [0]
        : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    %given = "stablehlo.case"(%n) ({
      stablehlo.return %a : tensor<4x4x4xf32>
    }, {
      stablehlo.return %none : tensor<4x4x4xf32>
    }) : (tensor<i32>) -> tensor<4x4x4xf32>
    %next = stablehlo.add %n, %one : tensor<i32>
    stablehlo.return %next, %u, %b, %a, %a, %given
        : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>, tensor<4x4x4xf32>, tensor<4x4x4xf32>, tensor<4x4x4xf32>
  }
  return %f#1, %f#4, %f#5 : tensor<8x4xf32>, tensor<4x4x4xf32>, tensor<4x4x4xf32>
}
