// RUN: autoshard-opt --autoshard-split-loops='stages=2 chunks=2 cluster=cpu:2 batch=x' %s | filecheck %s

// Two parts of the model on each stage: loops are marked with the number of the part.
// CHECK-LABEL: func.func public @main
// CHECK-SAME:  tensor<2x4x4xf32>{{.*}}tensor<2x4x4xf32>{{.*}}tensor<2x4x4xf32>{{.*}}tensor<2x4x4xf32>
// CHECK:       stablehlo.while
// CHECK:       autoshard.stage = 0
// CHECK:       autoshard.stage = 1
// CHECK:       autoshard.stage = 2
// CHECK:       autoshard.stage = 3
// CHECK-NOT:   stablehlo.while
func.func public @main(%x: tensor<8x4xf32> loc("x"), %w: tensor<8x4x4xf32> loc("w")) -> tensor<8x4xf32> {
  %start = stablehlo.constant dense<0> : tensor<i32>
  %f:3 = stablehlo.while(%n = %start, %h = %x, %a = %w) : tensor<i32>, tensor<8x4xf32>, tensor<8x4x4xf32>
  cond {
    %trips = stablehlo.constant dense<8> : tensor<i32>
    %more = stablehlo.compare LT, %n, %trips : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %z = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %row = stablehlo.dynamic_slice %a, %n, %z, %z, sizes = [1, 4, 4]
        : (tensor<8x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    %own = stablehlo.reshape %row : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %y = stablehlo.dot_general %h, %own, contracting_dims = [1] x [0]
        : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    %next = stablehlo.add %n, %one : tensor<i32>
    stablehlo.return %next, %y, %a : tensor<i32>, tensor<8x4xf32>, tensor<8x4x4xf32>
  } loc("net.py":7:1)
  return %f#1 : tensor<8x4xf32>
}
