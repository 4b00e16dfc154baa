// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation %s | filecheck %s

// A constant read by two ops is not one value to be agreed on: each reader makes its own part.
// CHECK:       autoshard.resharded_bytes = 0.000000e+00
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"},
    %y: tensor<64x128xf32> {mhlo.sharding = "{devices=[1,8]<=[8]}"}) -> (tensor<64x128xf32>, tensor<64x128xf32>) {
  %half = stablehlo.constant dense<0.5> : tensor<f32>
  // CHECK:      stablehlo.broadcast_in_dim
  // CHECK-SAME: autoshard.strategy = "[] -> [{}, {dp, tp}]"
  %halves = stablehlo.broadcast_in_dim %half, dims = [] : (tensor<f32>) -> tensor<64x128xf32>
  // CHECK:      stablehlo.multiply
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}], [{dp, tp}, {}] -> [{dp, tp}, {}]"
  %0 = stablehlo.multiply %x, %halves : tensor<64x128xf32>
  // CHECK:      stablehlo.multiply
  // CHECK-SAME: autoshard.strategy = "[{}, {dp, tp}], [{}, {dp, tp}] -> [{}, {dp, tp}]"
  %1 = stablehlo.multiply %y, %halves : tensor<64x128xf32>
  return %0, %1 : tensor<64x128xf32>, tensor<64x128xf32>
}
