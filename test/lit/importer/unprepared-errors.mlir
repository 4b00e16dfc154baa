// RUN: not autoshard-opt --mesh=dp=2,tp=4 --autoshard-sharding-propagation --split-input-file %s 2>&1 | filecheck %s

// Composites and manual computations are made ready by autoshard-import-strategies, which the error says.
// CHECK: unprepared-errors.mlir:[[# @LINE + 2]]:8: error: composite "mine.square" is not expanded: run autoshard-import-strategies before planning.
func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.composite "mine.square" %x {decomposition = @square} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
func.func private @square(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.multiply %x, %x : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// -----

sdy.mesh @mesh = <["dp"=2, "tp"=4]>

// CHECK: unprepared-errors.mlir:[[# @LINE + 2]]:8: error: manual computation without autoshard.pin: run autoshard-import-strategies before planning.
func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"dp"}, {}]>] out_shardings=[<@mesh, [{"dp"}, {}]>]
      manual_axes={"dp"} (%a: tensor<4x16xf32>) {
    sdy.return %a : tensor<4x16xf32>
  } : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
