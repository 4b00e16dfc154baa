// RUN: autoshard-opt --autoshard-host-offload %s | filecheck %s

// Two parameters with two states each. The gradient of the second one is there first, so it is
// updated first, before the gradient of the first one is made; the states of the first one come
// once both of the second one have gone back. What is made of a gradient alone comes along.
// CHECK-LABEL: func.func public @main
// CHECK:       stablehlo.dot_general %arg7, %arg6
// CHECK:       stablehlo.custom_call @annotate_device_placement(%arg3) {{.*}}"device"
// CHECK:       %[[N:.*]] = stablehlo.custom_call @annotate_device_placement({{.*}}"pinned_host"
// CHECK:       stablehlo.custom_call @annotate_device_placement(%arg5) {{.*}}"device"
// CHECK:       %[[W:.*]] = stablehlo.custom_call @annotate_device_placement({{.*}}"pinned_host"
// CHECK:       stablehlo.subtract %arg1
// CHECK:       stablehlo.dot_general %arg6, %arg7
// CHECK:       stablehlo.optimization_barrier %arg2, %[[N]], %[[W]]
// CHECK:       stablehlo.optimization_barrier %arg4, %[[N]], %[[W]]
// CHECK:       stablehlo.subtract %arg0
// CHECK-NOT:   stablehlo.optimization_barrier
func.func public @main(
    %p: tensor<64x64xf32> {tf.aliasing_output = 0 : i32}, %q: tensor<64x64xf32> {tf.aliasing_output = 1 : i32},
    %m: tensor<64x64xf32> {tf.aliasing_output = 2 : i32}, %n: tensor<64x64xf32> {tf.aliasing_output = 3 : i32},
    %v: tensor<64x64xf32> {tf.aliasing_output = 4 : i32}, %w: tensor<64x64xf32> {tf.aliasing_output = 5 : i32},
    %x: tensor<64x64xf32>, %y: tensor<64x64xf32>)
    -> (tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>,
        tensor<64x64xf32>) {
  %mm = stablehlo.custom_call @autoshard.in_host_memory(%m) : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %nn = stablehlo.custom_call @autoshard.in_host_memory(%n) : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %vv = stablehlo.custom_call @autoshard.in_host_memory(%v) : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %ww = stablehlo.custom_call @autoshard.in_host_memory(%w) : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %h = stablehlo.dot_general %y, %x, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %g = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %gg = stablehlo.multiply %g, %g : tensor<64x64xf32>
  %hh = stablehlo.multiply %h, %h : tensor<64x64xf32>
  %m1 = stablehlo.add %mm, %g : tensor<64x64xf32>
  %n1 = stablehlo.add %nn, %h : tensor<64x64xf32>
  %v1 = stablehlo.subtract %vv, %gg : tensor<64x64xf32>
  %w1 = stablehlo.subtract %ww, %hh : tensor<64x64xf32>
  %mv = stablehlo.divide %m1, %v1 : tensor<64x64xf32>
  %nw = stablehlo.divide %n1, %w1 : tensor<64x64xf32>
  %p1 = stablehlo.subtract %p, %mv : tensor<64x64xf32>
  %q1 = stablehlo.subtract %q, %nw : tensor<64x64xf32>
  return %p1, %q1, %m1, %n1, %v1, %w1 : tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>,
                                        tensor<64x64xf32>, tensor<64x64xf32>
}
