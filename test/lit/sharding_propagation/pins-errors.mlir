// RUN: not autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation --split-input-file %s 2>&1 | filecheck %s

// Two strategies that want one argument in different ways contradict: it would be resharded
// behind the user's back.
// CHECK: pins-errors.mlir:[[# @LINE + 3]]:8: error: two strategies contradict on one argument: [{dp}, {}] at {{.*}}pins-errors.mlir:[[# @LINE + 2]]:8 and [{}, {tp}] at {{.*}}pins-errors.mlir:[[# @LINE + 3]]:8. Give both ops one strategy for it, or reshard it for one of them with jax.lax.with_sharding_constraint.
func.func @main(%w: tensor<64x128xf32>) -> (tensor<64x128xf32>, tensor<64x128xf32>) {
  %0 = stablehlo.tanh %w {autoshard.in_strategy = ["[{dp}, {}]"]} : tensor<64x128xf32>
  %1 = stablehlo.cosine %w {autoshard.in_strategy = ["[{}, {tp}]"]} : tensor<64x128xf32>
  return %0, %1 : tensor<64x128xf32>, tensor<64x128xf32>
}

// -----

// The contracted dims of a matmul must be cut alike.
// CHECK: pins-errors.mlir:[[# @LINE + 2]]:8: error: stablehlo.dot_general: no way to split the op fits its pinned operands (tensor<64x128xf32> as [{dp}, {tp}], tensor<128x256xf32> as [{}, {}]): dims that are contracted or matched with each other must be split by the same axes, and no axis may split two dims. Change one of the strategies.
func.func @main(%x: tensor<64x128xf32>, %w: tensor<128x256xf32>) -> tensor<64x256xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      {autoshard.in_strategy = ["[{dp}, {tp}]", "[{}, {}]"]} : (tensor<64x128xf32>, tensor<128x256xf32>) -> tensor<64x256xf32>
  return %0 : tensor<64x256xf32>
}

// -----

// No axis may cut both the rows and the columns of a result.
// CHECK: pins-errors.mlir:[[# @LINE + 2]]:8: error: stablehlo.dot_general: no way to split the op fits its pinned operands (tensor<64x128xf32> as [{tp}, {}], tensor<128x256xf32> as [{}, {tp}]): dims that are contracted or matched with each other must be split by the same axes, and no axis may split two dims. Change one of the strategies.
func.func @main(%x: tensor<64x128xf32>, %w: tensor<128x256xf32>) -> tensor<64x256xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      {autoshard.in_strategy = ["[{tp}, {}]", "[{}, {tp}]"]} : (tensor<64x128xf32>, tensor<128x256xf32>) -> tensor<64x256xf32>
  return %0 : tensor<64x256xf32>
}

// -----

// No pin: nothing to propagate.
// CHECK: pins-errors.mlir: error: there is no operator that is configured with a sharding strategy: nothing to propagate. Mark an op with autoshard.shard(fn, in_strategy=..), give in_shardings, or let the automatic mode choose.
func.func @main(%x: tensor<64x128xf32>) -> tensor<64x128xf32> {
  %0 = stablehlo.tanh %x : tensor<64x128xf32>
  return %0 : tensor<64x128xf32>
}

// -----

// CHECK: pins-errors.mlir:[[# @LINE + 1]]:1: error: value: dim 0 (size 6) cannot be split by axis "tp" (size 4): 6 % 4 = 2. Choose another dim or another axis, or pad the dim to 8.
func.func @main(%x: tensor<6x128xf32> {autoshard.pin = "[{tp}, {}]"}) -> tensor<6x128xf32> {
  return %x : tensor<6x128xf32>
}

// -----

// CHECK: pins-errors.mlir:[[# @LINE + 1]]:1: error: pin [{tp:(1)2}, {}] names a part of an axis of the mesh "dp=2,tp=4". Run autoshard-import-strategies on the layout: it refines the mesh.
func.func @main(%x: tensor<8x128xf32> {autoshard.pin = "[{tp:(1)2}, {}]"}) -> tensor<8x128xf32> {
  return %x : tensor<8x128xf32>
}

// -----

// CHECK: pins-errors.mlir:[[# @LINE + 1]]:1: error: pin: dim 0 (size 8) cannot be cut into 16 pieces by strategy (16, 1): 8 % 16 = 8. Choose a number that divides the size, or cut another dim.
func.func @main(%x: tensor<8x128xf32> {autoshard.pin = "(16, 1)"}) -> tensor<8x128xf32> {
  return %x : tensor<8x128xf32>
}

// -----

// Numbers of blocks that no axes make together with the other pins.
// CHECK: pins-errors.mlir:[[# @LINE + 1]]:1: error: no axes of the mesh dp=2,tp=4 split a value as pinned: (2, 2). Choose other numbers of blocks, or a mesh with smaller axes.
func.func @main(%x: tensor<8x128xf32> {autoshard.pin = "(2, 2)"}) -> tensor<8x128xf32> {
  return %x : tensor<8x128xf32>
}

// -----

// CHECK: pins-errors.mlir:[[# @LINE + 2]]:8: error: stablehlo.tanh: strategy "[{dp}, {}], [{}, {}] -> [{dp}, {}]" has 2 operands and 1 results, the op has 1 and 1.
func.func @main(%x: tensor<8x128xf32>) -> tensor<8x128xf32> {
  %0 = stablehlo.tanh %x {autoshard.strategy = "[{dp}, {}], [{}, {}] -> [{dp}, {}]"} : tensor<8x128xf32>
  return %0 : tensor<8x128xf32>
}

// -----

// A dim without elements has nothing to cut.
// CHECK: pins-errors.mlir:{{.*}}: error: pin [{dp}, {}]: dim 0 has size 0 and cannot be cut into 2 pieces. Leave it whole.
func.func @main(%x: tensor<0x16xf32>) -> tensor<0x16xf32> {
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["[{dp}, {}]"]} : tensor<0x16xf32>
  return %0 : tensor<0x16xf32>
}
