// RUN: not autoshard-opt --autoshard-recursive-programming='cluster=cpu:2 mesh=data=2' --autoshard-recompute='memory-limit=9MiB' %s 2>&1 | filecheck %s

// What the loop stacks is the result, 16 MiB on a device: nothing can be computed again instead.
// CHECK: error: computing values again does not make this plan fit: it still needs {{.*}} more than the 9 MiB allowed
// CHECK-SAME: stacks.py:3
// CHECK-SAME: Plan for less memory, use more chips or a smaller batch.
func.func public @main(%x: tensor<2048x1024xf32>) -> tensor<4x2048x1024xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %four = stablehlo.constant dense<4> : tensor<i32>
  %nothing = stablehlo.constant dense<0.0> : tensor<f32>
  %empty = stablehlo.broadcast_in_dim %nothing, dims = [] : (tensor<f32>) -> tensor<4x2048x1024xf32>
  %f:3 = stablehlo.while(%i = %zero, %c = %x, %s = %empty)
      : tensor<i32>, tensor<2048x1024xf32>, tensor<4x2048x1024xf32>
  cond {
    %go = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %h = stablehlo.tanh %c : tensor<2048x1024xf32> loc("stacks.py":3:4)
    %hr = stablehlo.reshape %h : (tensor<2048x1024xf32>) -> tensor<1x2048x1024xf32>
    %s2 = stablehlo.dynamic_update_slice %s, %hr, %i, %zero, %zero
        : (tensor<4x2048x1024xf32>, tensor<1x2048x1024xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<4x2048x1024xf32>
    %n = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %n, %h, %s2 : tensor<i32>, tensor<2048x1024xf32>, tensor<4x2048x1024xf32>
  }
  return %f#2 : tensor<4x2048x1024xf32>
}
