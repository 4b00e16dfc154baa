// RUN: not autoshard-opt --mesh=d=7 --autoshard-import-strategies --autoshard-sharding-propagation --split-input-file %s 2>&1 | filecheck %s --check-prefix=REFUSE
// RUN: not autoshard-opt --mesh=d=7 --autoshard-import-strategies=indivisible=pad --autoshard-sharding-propagation --split-input-file %s 2>&1 | filecheck %s --check-prefix=PAD
// RUN: not autoshard-opt --mesh=d=7 --autoshard-import-strategies=indivisible=replicate %s 2>&1 | filecheck %s --check-prefix=OPTION

// OPTION: autoshard-opt: error: autoshard-import-strategies: option indivisible=replicate: expected refuse|pad. Default: indivisible=refuse.

// A dim without seven equal parts is refused, unless it may be padded. An op that shifts rows could not
// be cut then.
// REFUSE: indivisible-errors.mlir:[[# @LINE + 3]]:8: error: operand 0: dim 0 (size 250) cannot be cut into 7 pieces by strategy (7, 1): 250 % 7 = 5. Choose a number that divides the size, or cut another dim. Or plan with indivisible='pad'.
// PAD: indivisible-errors.mlir:[[# @LINE + 2]]:8: error: stablehlo.reverse: no way to split the op fits its pinned operands {{.*}} A dim in uneven parts can only be cut by ops that go through it element by element or reduce it. Change one of the strategies.
func.func public @main(%x: tensor<250x64xf32>) -> tensor<250x64xf32> {
  %0 = stablehlo.reverse %x, dims = [0] {autoshard.in_strategy = ["(7, 1)"]} : tensor<250x64xf32>
  return %0 : tensor<250x64xf32>
}

// -----

// An argument is never padded: the caller holds it.
// REFUSE: error: {{.*}} 250 % 7 = 5
// PAD: indivisible-errors.mlir:[[# @LINE + 1]]:1: error: value: dim 0 (size 250) cannot be split by axis "d" (size 7): 250 % 7 = 5. Choose another dim or another axis, or pad the dim to 252.
func.func public @main(%x: tensor<250x64xf32> {mhlo.sharding = "{devices=[7,1]<=[7]}"}) -> tensor<250x64xf32> {
  %0 = stablehlo.tanh %x : tensor<250x64xf32>
  return %0 : tensor<250x64xf32>
}

// -----

// Of six rows one device would have none.
// REFUSE: error: {{.*}} 6 % 7 = 6
// PAD: error: {{.*}} 6 % 7 = 6
func.func public @main(%x: tensor<6x64xf32>) -> tensor<6x64xf32> {
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["(7, 1)"]} : tensor<6x64xf32>
  return %0 : tensor<6x64xf32>
}
