// RUN: autoshard-opt --autoshard-undo-checkpoints %s | filecheck %s

// The first loop stacks what each trip starts with, on the host; the second one takes it from there
// and multiplies again. Then the product is stacked, on the device, and the second loop reads it.
// CHECK-LABEL: func.func public @main
// CHECK-NOT:   annotate_device_placement
// CHECK:       stablehlo.while
// CHECK:       %[[A:.*]] = stablehlo.dot_general
// CHECK:       %[[ROW:.*]] = stablehlo.reshape %[[A]]
// CHECK:       stablehlo.dynamic_update_slice %{{.*}}, %[[ROW]]
// CHECK-NOT:   stablehlo.dynamic_update_slice
// CHECK:       stablehlo.while
// CHECK-NOT:   stablehlo.dot_general
// CHECK:       %[[PART:.*]] = stablehlo.dynamic_slice
// CHECK:       %[[READ:.*]] = stablehlo.reshape %[[PART]]
// CHECK:       stablehlo.cosine %[[READ]]
func.func public @main(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %four = stablehlo.constant dense<4> : tensor<i32>
  %nothing = stablehlo.constant dense<0.0> : tensor<f32>
  %empty = stablehlo.broadcast_in_dim %nothing, dims = [] : (tensor<f32>) -> tensor<4x8x8xf32>
  %f:3 = stablehlo.while(%i = %zero, %c = %x, %s = %empty)
      : tensor<i32>, tensor<8x8xf32>, tensor<4x8x8xf32>
  cond {
    %go = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %a = stablehlo.dot_general %c, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %h = stablehlo.sine %a : tensor<8x8xf32>
    %away = stablehlo.custom_call @annotate_device_placement(%c) {has_side_effect = true, mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %row = stablehlo.broadcast_in_dim %away, dims = [1, 2] : (tensor<8x8xf32>) -> tensor<1x8x8xf32>
    %s2 = stablehlo.dynamic_update_slice %s, %row, %i, %zero, %zero
        : (tensor<4x8x8xf32>, tensor<1x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<4x8x8xf32>
    %n = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %n, %h, %s2 : tensor<i32>, tensor<8x8xf32>, tensor<4x8x8xf32>
  }
  %g:3 = stablehlo.while(%i = %zero, %d = %f#1, %s = %f#2)
      : tensor<i32>, tensor<8x8xf32>, tensor<4x8x8xf32>
  cond {
    %go = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %j = stablehlo.subtract %three, %i : tensor<i32>
    %part = stablehlo.dynamic_slice %s, %j, %zero, %zero, sizes = [1, 8, 8]
        : (tensor<4x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
    %there = stablehlo.reshape %part : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
    %c = stablehlo.custom_call @annotate_device_placement(%there) {has_side_effect = true, mhlo.frontend_attributes = {_xla_buffer_placement = "device"}} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %a = stablehlo.dot_general %c, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %slope = stablehlo.cosine %a : tensor<8x8xf32>
    %e = stablehlo.multiply %d, %slope : tensor<8x8xf32>
    %n = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %n, %e, %s : tensor<i32>, tensor<8x8xf32>, tensor<4x8x8xf32>
  }
  return %g#1 : tensor<8x8xf32>
}
