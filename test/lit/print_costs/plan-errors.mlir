// RUN: not autoshard-opt --autoshard-print-costs=cluster=cpu:4 %s 2>&1 | filecheck %s

// A plan that breaks a pin costs nothing; the place is that of the pin.
// CHECK: plan-errors.mlir:6:1: error: the plan on the module does not hold: a value is pinned to [{dp}, {}], but is planned as [{}, {}]. Plan the module again, or change the pin.
module attributes {autoshard.mesh = "dp=4"} {
func.func public @main(
    %x: tensor<8x128xf32> {autoshard.pin = "[{dp}, {}]", mhlo.sharding = "{replicated}"})
    -> (tensor<8x128xf32> {mhlo.sharding = "{replicated}"}) {
  %0 = stablehlo.tanh %x
      {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}] -> [{}, {}]"} : tensor<8x128xf32>
  return %0 : tensor<8x128xf32>
}
}
