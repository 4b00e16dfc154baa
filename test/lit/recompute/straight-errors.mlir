// RUN: not autoshard-opt --autoshard-recompute='cluster=cpu:2' %s 2>&1 | filecheck %s
// RUN: not autoshard-opt --autoshard-recompute %s 2>&1 | filecheck %s --check-prefix=CLUSTER
// RUN: not autoshard-opt --autoshard-recompute='cluster=cpu:2 memory-limit=much' %s 2>&1 | filecheck %s --check-prefix=LIMIT
// RUN: not autoshard-opt --autoshard-recompute='cluster=cpu:2 overlap=2' %s 2>&1 | filecheck %s --check-prefix=OVERLAP
// RUN: not autoshard-opt --autoshard-recursive-programming='cluster=cpu:2 mesh=data=2' --autoshard-recompute='memory-limit=1KiB' %s 2>&1 | filecheck %s --check-prefix=SMALL

// It changes a plan; without one there is nothing to change, and arguments cannot be dropped.
// CHECK:   error: the module has no autoshard.mesh. Run autoshard-import-strategies first
// CLUSTER: error: autoshard-recompute: no cluster is given, and the plan was made without one.
// LIMIT:   error: autoshard-recompute: option memory-limit=much: expected bytes
// OVERLAP: error: autoshard-recompute: option overlap=2.0 is out of range. Give 0 to 1.
// SMALL:   error: computing values again does not make this plan fit: it still needs {{.*}} more than the 1 KiB allowed
func.func public @main(%x: tensor<8x128xf32>) -> tensor<8x128xf32> {
  %0 = stablehlo.tanh %x : tensor<8x128xf32>
  return %0 : tensor<8x128xf32>
}
