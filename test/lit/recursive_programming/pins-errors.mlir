// RUN: not autoshard-opt --autoshard-recursive-programming='cluster=v5e:2x4 mesh=dp=2,tp=4' %s 2>&1 | filecheck %s

// Pins that no plan keeps are named as in sharding propagation.
// CHECK: pins-errors.mlir:{{[0-9]+}}:8: error: stablehlo.dot_general: no way to split the op fits its pinned operands (tensor<64x128xf32> as [{}, {tp}], tensor<128x256xf32> as [{dp}, {}])
func.func public @main(%x: tensor<64x128xf32>, %w: tensor<128x256xf32>) -> tensor<64x256xf32> {
  // The contracted dim is pinned to different axes on both sides.
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      {autoshard.in_strategy = ["[{}, {tp}]", "[{dp}, {}]"]} : (tensor<64x128xf32>, tensor<128x256xf32>) -> tensor<64x256xf32>
  return %0 : tensor<64x256xf32>
}
