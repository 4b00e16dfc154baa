// RUN: not autoshard-opt --autoshard-print-schedule='cluster=cpu:2' %s 2>&1 | filecheck %s
// RUN: not autoshard-opt --autoshard-print-schedule='cluster=cpu:2 schedule=best' %s 2>&1 \
// RUN:     | filecheck %s --check-prefix=RULE
// RUN: not autoshard-opt --autoshard-print-schedule %s 2>&1 | filecheck %s --check-prefix=CLUSTER

// CHECK:   error: the ops have no stages. Run autoshard-pipeline-stages first.
// RULE:    schedule=best
// CLUSTER: no cluster is given:
func.func public @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  return %x : tensor<8x4xf32>
}
