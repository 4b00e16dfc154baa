// RUN: autoshard-opt --autoshard-recursive-programming='cluster=cpu:2 compiler=xla-tpu-0.0.42 mesh=data=2' --autoshard-recompute='memory-limit=40MiB' %s | filecheck %s
// RUN: autoshard-opt --autoshard-recursive-programming='cluster=cpu:2 compiler=xla-tpu-0.0.42 mesh=data=2' --autoshard-recompute='memory-limit=60MiB' %s | filecheck %s --check-prefix=FITS

// The first loop stacks a tanh and the cosine of it, 16 MiB each on a device; the second one
// reads both. With too little memory the cosine is not stacked but computed in the second loop.
// CHECK-LABEL: func.func public @main
// CHECK:       %[[F:.*]]:3 = stablehlo.while
// CHECK:       stablehlo.tanh
// CHECK:       stablehlo.dynamic_update_slice
// CHECK-NOT:   stablehlo.dynamic_update_slice
// CHECK:       stablehlo.while
// CHECK:       stablehlo.cosine
// CHECK-SAME:  autoshard.strategy = "[{data}, {}] -> [{data}, {}]"
// CHECK:       stablehlo.multiply

// FITS:        stablehlo.cosine
// FITS:        stablehlo.dynamic_update_slice
// FITS:        stablehlo.dynamic_update_slice
// FITS:        stablehlo.while
// FITS-NOT:    stablehlo.cosine
func.func public @main(%x: tensor<2048x1024xf32>) -> tensor<2048x1024xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %four = stablehlo.constant dense<4> : tensor<i32>
  %nothing = stablehlo.constant dense<0.0> : tensor<f32>
  %empty = stablehlo.broadcast_in_dim %nothing, dims = [] : (tensor<f32>) -> tensor<4x2048x1024xf32>
  %f:4 = stablehlo.while(%i = %zero, %c = %x, %s = %empty, %t = %empty)
      : tensor<i32>, tensor<2048x1024xf32>, tensor<4x2048x1024xf32>, tensor<4x2048x1024xf32>
  cond {
    %go = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %h = stablehlo.tanh %c : tensor<2048x1024xf32>
    %k = stablehlo.cosine %h : tensor<2048x1024xf32>
    %hr = stablehlo.reshape %h : (tensor<2048x1024xf32>) -> tensor<1x2048x1024xf32>
    %s2 = stablehlo.dynamic_update_slice %s, %hr, %i, %zero, %zero
        : (tensor<4x2048x1024xf32>, tensor<1x2048x1024xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<4x2048x1024xf32>
    %kr = stablehlo.reshape %k : (tensor<2048x1024xf32>) -> tensor<1x2048x1024xf32>
    %t2 = stablehlo.dynamic_update_slice %t, %kr, %i, %zero, %zero
        : (tensor<4x2048x1024xf32>, tensor<1x2048x1024xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<4x2048x1024xf32>
    %n = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %n, %k, %s2, %t2 : tensor<i32>, tensor<2048x1024xf32>, tensor<4x2048x1024xf32>, tensor<4x2048x1024xf32>
  }
  %b:4 = stablehlo.while(%i = %three, %c = %x, %s = %f#2, %t = %f#3)
      : tensor<i32>, tensor<2048x1024xf32>, tensor<4x2048x1024xf32>, tensor<4x2048x1024xf32>
  cond {
    %go = stablehlo.compare GE, %i, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %hr = stablehlo.dynamic_slice %s, %i, %zero, %zero, sizes = [1, 2048, 1024]
        : (tensor<4x2048x1024xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2048x1024xf32>
    %h = stablehlo.reshape %hr : (tensor<1x2048x1024xf32>) -> tensor<2048x1024xf32>
    %kr = stablehlo.dynamic_slice %t, %i, %zero, %zero, sizes = [1, 2048, 1024]
        : (tensor<4x2048x1024xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2048x1024xf32>
    %k = stablehlo.reshape %kr : (tensor<1x2048x1024xf32>) -> tensor<2048x1024xf32>
    %p = stablehlo.multiply %h, %k : tensor<2048x1024xf32>
    %d = stablehlo.multiply %c, %p : tensor<2048x1024xf32>
    %n = stablehlo.subtract %i, %one : tensor<i32>
    stablehlo.return %n, %d, %s, %t : tensor<i32>, tensor<2048x1024xf32>, tensor<4x2048x1024xf32>, tensor<4x2048x1024xf32>
  }
  return %b#1 : tensor<2048x1024xf32>
}
