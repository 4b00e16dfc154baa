// RUN: autoshard-opt --mesh=d=7 --autoshard-import-strategies=indivisible=pad --autoshard-sharding-propagation %s | filecheck %s
// RUN: autoshard-opt --mesh=d=7 --autoshard-import-strategies=indivisible=pad --autoshard-sharding-propagation --autoshard-export-shardy %s | filecheck %s --check-prefix=SHARDY

// 250 rows on 7 devices: the argument and the result stay whole, what is between them is cut in six
// parts of 36 rows and one of 34.
// CHECK: autoshard.indivisible = "pad"
// CHECK-LABEL: func.func public @main(
// CHECK-SAME: %arg0: tensor<250x64xf32> {mhlo.sharding = "{replicated}"}
// CHECK-SAME: -> (tensor<250x30xf32> {mhlo.sharding = "{replicated}"})
// SHARDY-NOT: autoshard.indivisible
// SHARDY-LABEL: func.func public @main(
func.func public @main(%x: tensor<250x64xf32>, %w: tensor<64x30xf32>) -> tensor<250x30xf32> {
  // CHECK:      stablehlo.dot_general
  // CHECK-SAME: autoshard.strategy = "[{d}, {}], [{}, {}] -> [{d}, {}]"
  // SHARDY:      sdy.sharding_constraint %arg0 <@mesh, [{"d"}, {}]>
  // SHARDY-NEXT: stablehlo.dot_general
  // SHARDY-NEXT: sdy.sharding_constraint {{.*}} <@mesh, [{"d"}, {}]>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      {autoshard.in_strategy = ["(7, 1)", "(1, 1)"]} : (tensor<250x64xf32>, tensor<64x30xf32>) -> tensor<250x30xf32>
  // CHECK:      stablehlo.tanh
  // CHECK-SAME: autoshard.strategy = "[{d}, {}] -> [{d}, {}]"
  %1 = stablehlo.tanh %0 : tensor<250x30xf32>
  return %1 : tensor<250x30xf32>
}
