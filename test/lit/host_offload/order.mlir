// RUN: autoshard-opt --autoshard-host-offload %s | filecheck %s

// Two parameters with two states each: those of the second one come once both of the first one have
// gone back.
// CHECK-LABEL: func.func public @main
// CHECK:       %[[M:.*]] = stablehlo.custom_call @annotate_device_placement({{.*}}"pinned_host"
// CHECK:       %[[V:.*]] = stablehlo.custom_call @annotate_device_placement({{.*}}"pinned_host"
// CHECK:       stablehlo.optimization_barrier %{{.*}}, %[[M]], %[[V]]
// CHECK:       stablehlo.optimization_barrier %{{.*}}, %[[M]], %[[V]]
// CHECK-NOT:   stablehlo.optimization_barrier
func.func public @main(
    %p: tensor<64x16xf32> {tf.aliasing_output = 0 : i32}, %q: tensor<64x16xf32> {tf.aliasing_output = 1 : i32},
    %m: tensor<64x16xf32> {tf.aliasing_output = 2 : i32}, %n: tensor<64x16xf32> {tf.aliasing_output = 3 : i32},
    %v: tensor<64x16xf32> {tf.aliasing_output = 4 : i32}, %w: tensor<64x16xf32> {tf.aliasing_output = 5 : i32},
    %g: tensor<64x16xf32>) -> (tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>,
                               tensor<64x16xf32>, tensor<64x16xf32>) {
  %mm = stablehlo.custom_call @autoshard.in_host_memory(%m) : (tensor<64x16xf32>) -> tensor<64x16xf32>
  %nn = stablehlo.custom_call @autoshard.in_host_memory(%n) : (tensor<64x16xf32>) -> tensor<64x16xf32>
  %vv = stablehlo.custom_call @autoshard.in_host_memory(%v) : (tensor<64x16xf32>) -> tensor<64x16xf32>
  %ww = stablehlo.custom_call @autoshard.in_host_memory(%w) : (tensor<64x16xf32>) -> tensor<64x16xf32>
  %m1 = stablehlo.add %mm, %g : tensor<64x16xf32>
  %n1 = stablehlo.add %nn, %g : tensor<64x16xf32>
  %v1 = stablehlo.subtract %vv, %g : tensor<64x16xf32>
  %w1 = stablehlo.subtract %ww, %g : tensor<64x16xf32>
  %mv = stablehlo.divide %m1, %v1 : tensor<64x16xf32>
  %nw = stablehlo.divide %n1, %w1 : tensor<64x16xf32>
  %p1 = stablehlo.subtract %p, %mv : tensor<64x16xf32>
  %q1 = stablehlo.subtract %q, %nw : tensor<64x16xf32>
  return %p1, %q1, %m1, %n1, %v1, %w1 : tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>,
                                        tensor<64x16xf32>, tensor<64x16xf32>
}
