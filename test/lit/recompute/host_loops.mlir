// RUN: autoshard-opt --autoshard-recursive-programming='cluster=cpu:2 compiler=xla-tpu-0.0.42 mesh=data=2' --autoshard-recompute='choose=marks host-offload=true memory-limit=40MiB' %s | filecheck %s

// The first loop stacks a tanh and the cosine of it, 16 MiB each on a device; the second one
// reads both. With too little memory for both stacks one is on the host: a part of it is moved
// there in each trip, before it is written, and back behind where it is read. The zeros that it
// starts with are no move: compilers keep the whole stack there.
// CHECK-LABEL: func.func public @main
// CHECK:       stablehlo.while
// CHECK:       [[H:%[0-9]+]] = stablehlo.custom_call @annotate_device_placement
// CHECK-SAME:  _xla_buffer_placement = "pinned_host"
// CHECK:       [[R:%[0-9]+]] = stablehlo.reshape [[H]]
// CHECK:       stablehlo.dynamic_update_slice {{%[a-zA-Z0-9_]+}}, [[R]]
// CHECK-NOT:   annotate_device_placement
// CHECK:       stablehlo.while
// CHECK:       [[P:%[0-9]+]] = stablehlo.reshape
// CHECK:       stablehlo.custom_call @annotate_device_placement([[P]])
// CHECK-SAME:  _xla_buffer_placement = "device"
// CHECK-NOT:   annotate_device_placement
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
