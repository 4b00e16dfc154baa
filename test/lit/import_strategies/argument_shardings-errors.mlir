// RUN: not autoshard-opt --autoshard-import-strategies --split-input-file %s 2>&1 | filecheck %s

sdy.mesh @mesh = <["dp"=2, "tp"=4]>

// Two attributes of one argument that say different things contradict.
// CHECK: argument_shardings-errors.mlir:[[# @LINE + 1]]:1: error: two shardings contradict on one value: sdy.sharding says [{dp}, {}], mhlo.sharding says [{}, {dp}]. Remove one of the two attributes.
func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>,
    mhlo.sharding = "{devices=[1,2,4]<=[8] last_tile_dim_replicate}"}) -> tensor<8x16xf32> {
  return %x : tensor<8x16xf32>
}

// -----

sdy.mesh @mesh = <["dp"=2, "tp"=4]>

// A partial sum cannot be pinned: every value of a plan is finished.
// CHECK: argument_shardings-errors.mlir:[[# @LINE + 1]]:1: error: sharding [{dp}, {}] unreduced={tp} has unreduced or manual axes. autoshard plans finished values
func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}], unreduced={"tp"}>})
    -> tensor<8x16xf32> {
  return %x : tensor<8x16xf32>
}

// -----

sdy.mesh @large = <["dp"=4, "tp"=4]>
sdy.mesh @small = <["dp"=2, "tp"=4]>

// All meshes of a module have the same devices.
// CHECK: argument_shardings-errors.mlir: error: meshes "dp=4,tp=4" (16 devices) and "dp=2,tp=4" (8 devices) have no common refinement: the device counts differ.
func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@small, [{"dp"}, {}]>}) -> tensor<8x16xf32> {
  return %x : tensor<8x16xf32>
}
