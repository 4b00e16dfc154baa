// RUN: not autoshard-opt --autoshard-undo-checkpoints='policy=keep' %s 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: not autoshard-opt --autoshard-plan='cluster=cpu:2 policy=undo' %s 2>&1 | filecheck %s --check-prefix=VALUE

// The pass always undoes; whether it runs is an option of autoshard-plan.
// OPTION: error: autoshard-undo-checkpoints{{.*}}policy
// VALUE: error: autoshard-plan: option policy={{.*}}keep|replace
func.func public @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  return %x : tensor<4x8xf32>
}
