// RUN: autoshard-opt --autoshard-micro-batch='micro-batches=2 batch=0' \
// RUN:     --autoshard-pipeline-stages='stages=2 cluster=cpu:2 slack=2' %s | filecheck %s

// Without marks the cut is where the fewest bytes cross: 8x2 behind the second product, not 8x64
// behind the first one. The mask is made of the batch alone, and by both stages.
// CHECK-LABEL: func.func public @main
// CHECK:       stablehlo.while
// CHECK:       stablehlo.compare {{.*}}autoshard.stage = 0 : i32
// CHECK:       stablehlo.compare {{.*}}autoshard.stage = 1 : i32
// CHECK:       stablehlo.dot_general {{.*}}autoshard.stage = 0 : i32{{.*}} -> tensor<4x64xf32>
// CHECK:       stablehlo.dot_general {{.*}}autoshard.stage = 0 : i32{{.*}} -> tensor<4x2xf32>
// CHECK:       stablehlo.dot_general {{.*}}autoshard.stage = 1 : i32{{.*}} -> tensor<4x64xf32>
func.func public @main(%x: tensor<8x4xf32>, %a: tensor<4x64xf32>, %b: tensor<64x2xf32>,
    %c: tensor<2x64xf32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.constant dense<0.0> : tensor<8x4xf32>
  %mask = stablehlo.compare GT, %x, %zeros : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xi1>
  %kept = stablehlo.select %mask, %x, %zeros : tensor<8x4xi1>, tensor<8x4xf32>
  %p = stablehlo.dot_general %kept, %a, contracting_dims = [1] x [0]
      : (tensor<8x4xf32>, tensor<4x64xf32>) -> tensor<8x64xf32>
  %q = stablehlo.dot_general %p, %b, contracting_dims = [1] x [0]
      : (tensor<8x64xf32>, tensor<64x2xf32>) -> tensor<8x2xf32>
  %r = stablehlo.dot_general %q, %c, contracting_dims = [1] x [0]
      : (tensor<8x2xf32>, tensor<2x64xf32>) -> tensor<8x64xf32>
  %some = stablehlo.slice %r [0:8, 0:4] : (tensor<8x64xf32>) -> tensor<8x4xf32>
  %left = stablehlo.select %mask, %some, %zeros : tensor<8x4xi1>, tensor<8x4xf32>
  %loss = stablehlo.reduce(%left init: %zero) applies stablehlo.add across dimensions = [0, 1]
      : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  return %loss : tensor<f32>
}
