// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation %s | filecheck %s
// RUN: autoshard-opt --autoshard-recursive-programming='cluster=h100:2x4 mesh=dp=2,tp=4' %s | filecheck %s --check-prefix=AUTO

// A composite is planned as what it is made of.
// CHECK:       autoshard.resharded_bytes = 0.000000e+00
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"}) -> tensor<64x128xf32> {
  // AUTO:       call @softplus
  // CHECK:      call @softplus(%arg0) {mhlo.sharding = "{devices=[8,1]<=[8]}"}
  %0 = stablehlo.composite "mine.softplus" %x {decomposition = @softplus} : (tensor<64x128xf32>) -> tensor<64x128xf32>
  return %0 : tensor<64x128xf32>
}
// CHECK:        func.func private @softplus
func.func private @softplus(%x: tensor<64x128xf32>) -> tensor<64x128xf32> {
  // AUTO:       stablehlo.exponential
  // AUTO-SAME:  autoshard.strategy = "[{dp, tp}, {}] -> [{dp, tp}, {}]"
  // CHECK:      stablehlo.exponential
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}] -> [{dp, tp}, {}]"
  %0 = stablehlo.exponential %x : tensor<64x128xf32>
  // CHECK:      stablehlo.log_plus_one
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}] -> [{dp, tp}, {}]"
  %1 = stablehlo.log_plus_one %0 : tensor<64x128xf32>
  return %1 : tensor<64x128xf32>
}
