// RUN: not autoshard-opt --autoshard-plan %s 2>&1 | filecheck %s
// RUN: not autoshard-opt --autoshard-plan='cluster=v5e:2x2 host-offload=some' %s 2>&1 | filecheck %s --check-prefix=HOST
// RUN: not autoshard-opt --autoshard-plan='cluster=v5e:2x2 recompute=all' %s 2>&1 | filecheck %s --check-prefix=AGAIN
// RUN: not autoshard-opt --autoshard-plan='cluster=v5e:2x2 optimizer-parallel=4' %s 2>&1 | filecheck %s --check-prefix=LEVEL
// RUN: not autoshard-opt --autoshard-plan='cluster=v5e:2x2 host-offload=auto memory-limit=64KiB' %s 2>&1 | filecheck %s --check-prefix=FULL

// What the pass is not told, or told wrongly, and a program that does not fit in any way.
// CHECK: options-errors.mlir: error: autoshard-plan: no cluster is given: times depend on the chips and their links.
// HOST: error: autoshard-plan: option host-offload=some: expected marks|auto|none.
// AGAIN: error: autoshard-plan: option recompute=all: expected marks|auto|none.
// LEVEL: error: autoshard-optimizer-parallel: option level=4 is out of range. Give 1, 2 or 3.
// FULL: error: autoshard-plan: no plan fits, even with all optimizer states and parameters that are read once in the memory of the host (0 arguments: nothing): the plan needs {{.*}} allowed. Largest tensors at its worst moment, on one device: {{.*}}256x1024xf32{{.*}}. Use more chips or a smaller batch.
func.func public @main(%x: tensor<256x1024xf32>) -> tensor<256x1024xf32> {
  %y = stablehlo.tanh %x : tensor<256x1024xf32>
  return %y : tensor<256x1024xf32>
}
