// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies %s | filecheck %s

// What is updated at a known place, where all else is one constant, is padded; a slice at one is
// static. Both can be cut along the dims that they leave whole, and need no memory of their own.
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<8x16xf32>, %at: tensor<i32>)
    -> (tensor<8x24xf32>, tensor<8x4xf32>, tensor<8x4xf32>) {
  // CHECK:     %[[ZERO:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c5 = stablehlo.constant dense<5> : tensor<i32>
  %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<8x24xf32>
  // CHECK:     stablehlo.pad %arg0, %[[ZERO]], low = [0, 5], high = [0, 3], interior = [0, 0]
  %0 = stablehlo.dynamic_update_slice %zeros, %x, %c0, %c5
      : (tensor<8x24xf32>, tensor<8x16xf32>, tensor<i32>, tensor<i32>) -> tensor<8x24xf32>
  // CHECK:     stablehlo.slice %arg0 [0:8, 5:9]
  %1 = stablehlo.dynamic_slice %x, %c0, %c5, sizes = [8, 4]
      : (tensor<8x16xf32>, tensor<i32>, tensor<i32>) -> tensor<8x4xf32>
  // CHECK:     stablehlo.dynamic_slice %arg0, %{{.*}}, %arg1
  %2 = stablehlo.dynamic_slice %x, %c0, %at, sizes = [8, 4]
      : (tensor<8x16xf32>, tensor<i32>, tensor<i32>) -> tensor<8x4xf32>
  return %0, %1, %2 : tensor<8x24xf32>, tensor<8x4xf32>, tensor<8x4xf32>
}
