// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation %s | filecheck %s

// CHLO ops for which Shardy has no rule: elementwise ones pass every cut, top_k needs its last dim whole.
// CHECK:       autoshard.resharded_bytes = 0.000000e+00
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"}, %n: tensor<64x128xui32> {mhlo.sharding = "{devices=[8,1]<=[8]}"}) -> (tensor<64x2xf32>, tensor<64x2xi32>, tensor<64x128xui32>) {
  // CHECK:      chlo.erf_inv
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}] -> [{dp, tp}, {}]"
  %0 = chlo.erf_inv %x : tensor<64x128xf32> -> tensor<64x128xf32>
  // CHECK:      chlo.square
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}] -> [{dp, tp}, {}]"
  %1 = chlo.square %0 : tensor<64x128xf32> -> tensor<64x128xf32>
  // CHECK:      chlo.erfc
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}] -> [{dp, tp}, {}]"
  %2 = chlo.erfc %1 : tensor<64x128xf32> -> tensor<64x128xf32>
  // CHECK:      chlo.top_k
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}] -> [{dp, tp}, {}], [{dp, tp}, {}]"
  %3:2 = chlo.top_k(%2, k = 2) : tensor<64x128xf32> -> (tensor<64x2xf32>, tensor<64x2xi32>)
  // CHECK:      chlo.mulhi
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}], [{dp, tp}, {}] -> [{dp, tp}, {}]"
  %4 = chlo.mulhi %n, %n : tensor<64x128xui32>, tensor<64x128xui32> -> tensor<64x128xui32>
  return %3#0, %3#1, %4 : tensor<64x2xf32>, tensor<64x2xi32>, tensor<64x128xui32>
}
