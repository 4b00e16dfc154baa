// RUN: not autoshard-opt --autoshard-optimizer-parallel %s 2>&1 | filecheck %s
// RUN: not autoshard-opt --mesh=dp=4 --autoshard-optimizer-parallel %s 2>&1 | filecheck %s --check-prefix=PLAN
// RUN: not autoshard-opt --autoshard-optimizer-parallel=level=4 %s 2>&1 | filecheck %s --check-prefix=LEVEL
// RUN: not autoshard-opt --autoshard-optimizer-parallel=threshold-kb=-1 %s 2>&1 | filecheck %s --check-prefix=SIZE
// RUN: not autoshard-opt --autoshard-optimizer-parallel=shard-size=1 %s 2>&1 | filecheck %s --check-prefix=SHARD

// It changes a plan; without one there is nothing to change.
// CHECK: levels-errors.mlir: error: the module has no autoshard.mesh. Run autoshard-import-strategies first
// PLAN:  error: stablehlo.tanh has no mhlo.sharding: nothing has been planned, or the plan was exported.
// LEVEL: autoshard-opt: error: autoshard-optimizer-parallel: option level=4 is out of range. Give 1, 2 or 3.
// SIZE:  autoshard-opt: error: autoshard-optimizer-parallel: option threshold-kb=-1.0 is out of range. Give 0 or more.
// SHARD: autoshard-opt: error: autoshard-optimizer-parallel: option shard-size=1 is out of range. Give none, or 2 or more.
func.func @main(%x: tensor<8x128xf32>) -> tensor<8x128xf32> {
  %0 = stablehlo.tanh %x : tensor<8x128xf32>
  return %0 : tensor<8x128xf32>
}
