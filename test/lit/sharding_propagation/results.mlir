// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation %s | filecheck %s

// Rows come in and columns must go out: one all-to-all of 7/8 of the 4096 bytes that a device holds.
// CHECK:       autoshard.resharded_bytes = 3.584000e+03
// CHECK-LABEL: func.func @main
// CHECK-SAME:    %arg0: tensor<64x128xf32> {autoshard.pin = "[{dp, tp}, {}]", mhlo.sharding = "{devices=[8,1]<=[8]}"}
// CHECK-SAME:    -> (tensor<64x128xf32> {autoshard.pin = "[{}, {dp, tp}]", mhlo.sharding = "{devices=[1,8]<=[8]}"})
func.func @main(%x: tensor<64x128xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"})
    -> (tensor<64x128xf32> {mhlo.sharding = "{devices=[1,8]<=[8]}"}) {
  %0 = stablehlo.tanh %x : tensor<64x128xf32>
  return %0 : tensor<64x128xf32>
}
