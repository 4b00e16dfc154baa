// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation %s | filecheck %s

// Each call is planned with its own operands: one function called twice is split in two ways, and
// calls inside calls are followed.
// CHECK:       autoshard.resharded_bytes = 0.000000e+00
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"},
    %y: tensor<64x128xf32> {mhlo.sharding = "{devices=[1,8]<=[8]}"}) -> (tensor<64x128xf32>, tensor<64x128xf32>) {
  // CHECK:      call @outer(%arg0) {mhlo.sharding = "{devices=[8,1]<=[8]}"}
  %0 = func.call @outer(%x) : (tensor<64x128xf32>) -> tensor<64x128xf32>
  // CHECK:      call @outer_{{[0-9]+}}(%arg1) {mhlo.sharding = "{devices=[1,8]<=[8]}"}
  %1 = func.call @outer(%y) : (tensor<64x128xf32>) -> tensor<64x128xf32>
  return %0, %1 : tensor<64x128xf32>, tensor<64x128xf32>
}
// CHECK-LABEL: func.func private @outer(
// CHECK-SAME:    %arg0: tensor<64x128xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"}
func.func private @outer(%x: tensor<64x128xf32>) -> tensor<64x128xf32> {
  %0 = func.call @inner(%x) : (tensor<64x128xf32>) -> tensor<64x128xf32>
  return %0 : tensor<64x128xf32>
}
func.func private @inner(%x: tensor<64x128xf32>) -> tensor<64x128xf32> {
  // CHECK:      stablehlo.tanh
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}] -> [{dp, tp}, {}]"
  %0 = stablehlo.tanh %x : tensor<64x128xf32>
  return %0 : tensor<64x128xf32>
}
