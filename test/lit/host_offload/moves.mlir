// RUN: autoshard-opt --autoshard-host-offload %s | filecheck %s
// RUN: autoshard-opt --autoshard-host-offload=marks=false %s | filecheck %s --check-prefix=NONE
// RUN: autoshard-opt '--autoshard-host-offload=marks=false arguments=2' %s | filecheck %s --check-prefix=GIVEN

// Two momenta are marked: each lives on the host with the result that replaces it, is copied to the
// device for its update, and the second one comes only after the first one has gone back.
// CHECK-LABEL: func.func public @main
// CHECK-SAME:  %arg2: tensor<64x16xf32> {mhlo.memory_kind = "pinned_host", tf.aliasing_output = 2 : i32}
// CHECK-SAME:  %arg3: tensor<64x16xf32> {mhlo.memory_kind = "pinned_host", tf.aliasing_output = 3 : i32}
// CHECK-SAME:  -> (tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32> {mhlo.memory_kind = "pinned_host"}, tensor<64x16xf32> {mhlo.memory_kind = "pinned_host"})
// CHECK:       %[[M:.*]] = stablehlo.custom_call @annotate_device_placement(%arg2) {{.*}}"device"
// CHECK-NEXT:  %[[NEW_M:.*]] = stablehlo.add %[[M]]
// CHECK-NEXT:  %[[OUT:.*]] = stablehlo.custom_call @annotate_device_placement(%[[NEW_M]]) {{.*}}"pinned_host"
// CHECK-NEXT:  stablehlo.subtract %arg0, %[[NEW_M]]
// CHECK-NEXT:  %[[WAIT:.*]]:2 = stablehlo.optimization_barrier %arg3, %[[OUT]]
// CHECK-NEXT:  %[[N:.*]] = stablehlo.custom_call @annotate_device_placement(%[[WAIT]]#0) {{.*}}"device"
// CHECK-NEXT:  stablehlo.add %[[N]]
// NONE-NOT:    pinned_host
// NONE-NOT:    in_host_memory
// GIVEN:       %arg2: tensor<64x16xf32> {mhlo.memory_kind = "pinned_host"
// GIVEN-SAME:  %arg3: tensor<64x16xf32> {tf.aliasing_output = 3 : i32}
func.func public @main(
    %p: tensor<64x16xf32> {tf.aliasing_output = 0 : i32}, %q: tensor<64x16xf32> {tf.aliasing_output = 1 : i32},
    %m: tensor<64x16xf32> {tf.aliasing_output = 2 : i32}, %n: tensor<64x16xf32> {tf.aliasing_output = 3 : i32},
    %g: tensor<64x16xf32>) -> (tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>) {
  %mm = stablehlo.custom_call @autoshard.in_host_memory(%m) : (tensor<64x16xf32>) -> tensor<64x16xf32>
  %nn = stablehlo.custom_call @autoshard.in_host_memory(%n) : (tensor<64x16xf32>) -> tensor<64x16xf32>
  %m1 = stablehlo.add %mm, %g : tensor<64x16xf32>
  %n1 = stablehlo.add %nn, %g : tensor<64x16xf32>
  %p1 = stablehlo.subtract %p, %m1 : tensor<64x16xf32>
  %q1 = stablehlo.subtract %q, %n1 : tensor<64x16xf32>
  return %p1, %q1, %m1, %n1 : tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>
}
