// RUN: autoshard-opt --autoshard-micro-batch='micro-batches=2 batch=0,1' %s | filecheck %s

// The batch is read example by example, every second one; the loss and the gradient add up in the
// loop; what divides the finished sum comes behind it. The mask is counted over the whole batch
// before the loop, as the gradient needs the count.
// CHECK:       autoshard.micro_batches = "{\22count\22: 2,
// CHECK-LABEL: func.func public @main
// CHECK:       %[[COUNT:.*]] = stablehlo.reduce(%arg1
// CHECK:       stablehlo.reshape %arg0 : (tensor<8x4xf32>) -> tensor<4x2x4xf32>
// CHECK:       %[[LOOP:.*]]:{{.*}} = stablehlo.while
// CHECK:       stablehlo.dynamic_slice {{.*}} sizes = [4, 1, 4]
// CHECK:       stablehlo.dot_general {{.*}} (tensor<4x4xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>
// CHECK:       %[[PART:.*]] = stablehlo.dot_general {{.*}} (tensor<4x4xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>
// CHECK-NEXT:  stablehlo.add %{{.*}}, %[[PART]] : tensor<4x2xf32>
// CHECK:       stablehlo.return
// CHECK:       stablehlo.subtract %arg2, %[[LOOP]]
func.func public @main(%x: tensor<8x4xf32>, %mask: tensor<8xf32>, %w: tensor<4x2xf32>)
    -> tensor<4x2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %count = stablehlo.reduce(%mask init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8x4xf32>, tensor<4x2xf32>) -> tensor<8x2xf32>
  %scale = stablehlo.broadcast_in_dim %count, dims = [] : (tensor<f32>) -> tensor<8x2xf32>
  %error = stablehlo.divide %h, %scale : tensor<8x2xf32>
  %each = stablehlo.broadcast_in_dim %mask, dims = [0] : (tensor<8xf32>) -> tensor<8x2xf32>
  %masked = stablehlo.multiply %error, %each : tensor<8x2xf32>
  %gradient = stablehlo.dot_general %x, %masked, contracting_dims = [0] x [0]
      : (tensor<8x4xf32>, tensor<8x2xf32>) -> tensor<4x2xf32>
  %new = stablehlo.subtract %w, %gradient : tensor<4x2xf32>
  return %new : tensor<4x2xf32>
}
