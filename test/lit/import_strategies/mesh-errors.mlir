// RUN: not autoshard-opt --autoshard-import-strategies --split-input-file %s 2>&1 | filecheck %s

// Without any mesh there is nothing to plan for.
// CHECK: mesh-errors.mlir: error: no mesh: the module has no autoshard.mesh, no sdy.mesh of several devices and no layouts. Give one: --mesh=dp=2,tp=4, or mesh= in Python.
func.func @no_mesh(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["(4, 1)"]} : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// -----

sdy.mesh @one = <["dp"=1]>

// A mesh of one device is none.
// CHECK: mesh-errors.mlir: error: no mesh:
func.func @one_device(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["(1, 1)"]} : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// -----

// CHECK: mesh-errors.mlir:[[# @LINE + 2]]:8: error: sharding '[{dp}, {}]' names no mesh, and none is known here. Write it as 'mesh[dp=2,tp=4] [{dp}, {}]'.
func.func @axes_without_mesh(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["[{dp}, {}]"]} : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// -----

// Axes that change every 2 and every 3 devices cut each other: no mesh expresses both.
// CHECK: mesh-errors.mlir: error: meshes "a=2,b=3" and "c=3,d=2" have no common refinement: one has its axes change every 2 devices and another every 3, and 3 % 2 = 1. Use axis sizes that divide each other, or one mesh for the whole program.
func.func @no_common_refinement(%x: tensor<6x6xf32>) -> tensor<6x6xf32> {
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["mesh[a=2,b=3] [{a}, {}]"],
                          autoshard.out_strategy = ["mesh[c=3,d=2] [{c}, {}]"]} : tensor<6x6xf32>
  return %0 : tensor<6x6xf32>
}
