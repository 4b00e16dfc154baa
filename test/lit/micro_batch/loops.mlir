// RUN: autoshard-opt --autoshard-micro-batch='micro-batches=2 batch=0' %s | filecheck %s

// A loop over layers runs in each micro-batch, at its size; what it stacks is a sum over them.
// CHECK-LABEL: func.func public @main
// CHECK:       stablehlo.while({{.*}}) : tensor<i32>, {{.*}}tensor<3x4x4xf32>
// CHECK:       stablehlo.while({{.*}}) : tensor<i32>, tensor<4x4xf32>, tensor<3x4x4xf32>
// CHECK:       stablehlo.dot_general {{.*}} (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK:       stablehlo.add {{.*}} : tensor<3x4x4xf32>
func.func public @main(%x: tensor<8x4xf32>) -> tensor<3x4x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %empty = stablehlo.constant dense<0.0> : tensor<3x4x4xf32>
  %f:3 = stablehlo.while(%i = %zero, %h = %x, %sums = %empty)
      : tensor<i32>, tensor<8x4xf32>, tensor<3x4x4xf32>
  cond {
    %go = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %g = stablehlo.dot_general %h, %h, contracting_dims = [0] x [0]
        : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    %row = stablehlo.reshape %g : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
    %more = stablehlo.dynamic_update_slice %sums, %row, %i, %zero, %zero
        : (tensor<3x4x4xf32>, tensor<1x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x4x4xf32>
    %next = stablehlo.tanh %h : tensor<8x4xf32>
    %n = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %n, %next, %more : tensor<i32>, tensor<8x4xf32>, tensor<3x4x4xf32>
  }
  return %f#2 : tensor<3x4x4xf32>
}
