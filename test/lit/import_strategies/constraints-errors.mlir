// RUN: not autoshard-opt --autoshard-import-strategies --split-input-file %s 2>&1 | filecheck %s

sdy.mesh @mesh = <["dp"=2, "tp"=4]>

// A constraint cannot ask for a partial sum.
// CHECK: constraints-errors.mlir:[[# @LINE + 2]]:8: error: sharding [{dp}, {}] unreduced={tp} has unreduced or manual axes. autoshard plans finished values that all devices share: pin the dims only.
func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = sdy.sharding_constraint %x <@mesh, [{"dp"}, {}], unreduced={"tp"}> : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
