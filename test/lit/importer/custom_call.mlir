// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation %s 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=WARNING < %t

// Custom calls that Shardy knows are split as its rule says; others run replicated, which a warning
// says once with the first of them.
// WARNING:     custom_call.mlir:[[# @LINE + 9]]:8: warning: 2 ops have no factor rule and run replicated, first stablehlo.custom_call @mine. Attach a rule with autoshard.register_rule.
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<8x64x64xf32>) -> tensor<8x64x64xf32> {
  // CHECK:      @annotate_device_placement
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}, {}] -> [{dp, tp}, {}, {}]"
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["[{dp, tp}, {}, {}]"]} : tensor<8x64x64xf32>
  %1 = stablehlo.custom_call @annotate_device_placement(%0) {has_side_effect = true} : (tensor<8x64x64xf32>) -> tensor<8x64x64xf32>
  // CHECK:      @mine
  // CHECK-SAME: autoshard.strategy = "[{}, {}, {}] -> [{}, {}, {}]"
  %2 = stablehlo.custom_call @mine(%1) : (tensor<8x64x64xf32>) -> tensor<8x64x64xf32>
  %3 = stablehlo.custom_call @yours(%2) : (tensor<8x64x64xf32>) -> tensor<8x64x64xf32>
  return %3 : tensor<8x64x64xf32>
}
