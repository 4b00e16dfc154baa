// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation %s | filecheck %s

// An op that carries a strategy keeps it; its operands are resharded to it: the rows of the
// argument become columns, 7/8 of 4 KiB.
// CHECK:       autoshard.resharded_bytes = 3.584000e+03
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"}) -> tensor<64x128xf32> {
  // CHECK:      stablehlo.tanh
  // CHECK-SAME: autoshard.strategy = "[{}, {dp, tp}] -> [{}, {dp, tp}]"
  // CHECK-SAME: mhlo.sharding = "{devices=[1,8]<=[8]}"
  %0 = stablehlo.tanh %x {autoshard.strategy = "[{}, {dp, tp}] -> [{}, {dp, tp}]"} : tensor<64x128xf32>
  return %0 : tensor<64x128xf32>
}
