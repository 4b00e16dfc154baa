// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation --split-input-file %s | filecheck %s

// Both branches of an if are planned, and give the result in one sharding.
// CHECK-LABEL: func.func @main
func.func @main(%p: tensor<i1>, %x: tensor<64x128xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"}) -> tensor<64x128xf32> {
  // CHECK:      stablehlo.if
  // CHECK:      stablehlo.tanh
  // CHECK-SAME: mhlo.sharding = "{devices=[8,1]<=[8]}"
  // CHECK:      stablehlo.cosine
  // CHECK-SAME: mhlo.sharding = "{devices=[8,1]<=[8]}"
  // CHECK:      mhlo.sharding = "{devices=[8,1]<=[8]}"
  %0 = "stablehlo.if"(%p) ({
    %1 = stablehlo.tanh %x : tensor<64x128xf32>
    stablehlo.return %1 : tensor<64x128xf32>
  }, {
    %1 = stablehlo.cosine %x : tensor<64x128xf32>
    stablehlo.return %1 : tensor<64x128xf32>
  }) : (tensor<i1>) -> tensor<64x128xf32>
  return %0 : tensor<64x128xf32>
}

// -----

// A case with several results has a tuple of shardings; one of rank 0 is replicated.
// CHECK-LABEL: func.func @main
func.func @main(%p: tensor<i32>, %x: tensor<64x128xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"}) -> (tensor<64x128xf32>, tensor<f32>) {
  %half = stablehlo.constant dense<0.5> : tensor<f32>
  // CHECK:      stablehlo.case
  // CHECK:      {devices=[8,1]<=[8]}, {replicated}
  %0:2 = "stablehlo.case"(%p) ({
    %1 = stablehlo.tanh %x : tensor<64x128xf32>
    stablehlo.return %1, %half : tensor<64x128xf32>, tensor<f32>
  }, {
    %1 = stablehlo.cosine %x : tensor<64x128xf32>
    stablehlo.return %1, %half : tensor<64x128xf32>, tensor<f32>
  }) : (tensor<i32>) -> (tensor<64x128xf32>, tensor<f32>)
  return %0#0, %0#1 : tensor<64x128xf32>, tensor<f32>
}
