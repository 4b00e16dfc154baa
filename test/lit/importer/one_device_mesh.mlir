// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation %s | filecheck %s


sdy.mesh @one = <["dp"=1, "tp"=1]>

// A program traced on one device carries constraints that say nothing: they pin nothing, and the
// cut of the argument passes through them.
// CHECK:       autoshard.resharded_bytes = 0.000000e+00
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"}) -> tensor<64x128xf32> {
  // CHECK:      sdy.sharding_constraint
  // CHECK-SAME: mhlo.sharding = "{devices=[8,1]<=[8]}"
  %0 = sdy.sharding_constraint %x <@one, [{}, {}]> : tensor<64x128xf32>
  // CHECK:      stablehlo.tanh
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}] -> [{dp, tp}, {}]"
  %1 = stablehlo.tanh %0 : tensor<64x128xf32>
  return %1 : tensor<64x128xf32>
}
