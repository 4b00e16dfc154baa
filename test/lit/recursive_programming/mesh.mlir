// RUN: autoshard-opt --autoshard-recursive-programming='cluster=v5e:2x4 mesh=dp=2,tp=4' %s | filecheck %s
// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-recursive-programming=cluster=v5e:2x4 %s | filecheck %s

// A mesh that is given stays as it is, and so do the pins over it, also where the strategies were
// imported before.
// CHECK:      autoshard.mesh = "dp=2,tp=4"
// CHECK-LABEL: func.func public @main
// CHECK-SAME:    %arg0: tensor<64x128xf32> {autoshard.pin = "[{tp}, {dp}]", mhlo.sharding = "{devices=[4,2]<=[2,4]T(1,0)}"}
func.func public @main(%x: tensor<64x128xf32> {mhlo.sharding = "{devices=[4,2]<=[2,4]T(1,0)}"}) -> tensor<64x128xf32> {
  // CHECK:      stablehlo.tanh
  // CHECK-SAME:   autoshard.strategy = "[{tp}, {dp}] -> [{tp}, {dp}]"
  %0 = stablehlo.tanh %x : tensor<64x128xf32>
  return %0 : tensor<64x128xf32>
}
