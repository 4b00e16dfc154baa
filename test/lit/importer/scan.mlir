// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation %s | filecheck %s

// JAX 0.12 lowers cumulative sums for GPUs to scans: the dim that is scanned is whole, the others pass every cut.
// CHECK:       autoshard.resharded_bytes = 0.000000e+00
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128x16xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8]}"}) -> (tensor<64x128x16xf32>, tensor<64x16xf32>) {
  %zero = stablehlo.constant dense<0.000000e+00> : tensor<f32>
  %init = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
  // CHECK:      chlo.scan
  // CHECK-SAME: autoshard.strategy = "[{dp}, {}, {tp}], [{dp}, {tp}] -> [{dp}, {}, {tp}], [{dp}, {tp}]"
  %y:2 = chlo.scan(%x) inits (%init) dimension=1 attributes {is_associative = true, is_reverse = false} {
  ^bb0(%element: tensor<64x16xf32>, %carry: tensor<64x16xf32>):
    %sum = stablehlo.add %element, %carry : tensor<64x16xf32>
    stablehlo.return %sum, %sum : tensor<64x16xf32>, tensor<64x16xf32>
  } : (tensor<64x128x16xf32>, tensor<64x16xf32>) -> (tensor<64x128x16xf32>, tensor<64x16xf32>)
  // jax.export writes such an op as a composite with a body, and what it is made of as a loop.
  // CHECK:      chlo.scan
  // CHECK-SAME: autoshard.strategy = "[{dp}, {}, {tp}], [{dp}, {tp}] -> [{dp}, {}, {tp}], [{dp}, {tp}]"
  %z:2 = stablehlo.composite "chlo.scan" %y#0, %y#1 ({
  ^bb0(%element: tensor<64x16xf32>, %carry: tensor<64x16xf32>):
    %larger = stablehlo.maximum %element, %carry : tensor<64x16xf32>
    stablehlo.return %larger, %larger : tensor<64x16xf32>, tensor<64x16xf32>
  }) {composite_attributes = {dimension = 1 : i64, is_associative = true, is_reverse = false, operandSegmentSizes = array<i32: 1, 1>, resultSegmentSizes = array<i32: 1, 1>}, decomposition = @loop, version = 1 : i32} : (tensor<64x128x16xf32>, tensor<64x16xf32>) -> (tensor<64x128x16xf32>, tensor<64x16xf32>)
  return %z#0, %z#1 : tensor<64x128x16xf32>, tensor<64x16xf32>
}

func.func private @loop(%x: tensor<64x128x16xf32>, %init: tensor<64x16xf32>) -> (tensor<64x128x16xf32>, tensor<64x16xf32>) {
  return %x, %init : tensor<64x128x16xf32>, tensor<64x16xf32>
}
