// RUN: not autoshard-opt --autoshard-recursive-programming='cluster=cpu:2 mesh=data=2' --autoshard-recompute='host-offload=true memory-limit=1KiB' %s 2>&1 | filecheck %s
// RUN: not autoshard-opt --autoshard-recursive-programming='cluster=cpu:2 mesh=data=2' --autoshard-recompute='choose=marks host-offload=true memory-limit=1KiB' %s 2>&1 | filecheck %s --check-prefix=HOST
// RUN: not autoshard-opt --autoshard-recompute='cluster=cpu:2 host-offload=often' %s 2>&1 | filecheck %s --check-prefix=OPTION

// Arguments cannot be dropped; the error says what was tried.
// CHECK:  error: computing values again and sending them to the host do not make this plan fit: it still needs {{.*}} more than the 1 KiB allowed
// HOST:   error: sending values to the host does not make this plan fit
// OPTION: error: {{.*}}host-offload=often
func.func public @main(%x: tensor<8x128xf32>) -> tensor<8x128xf32> {
  %0 = stablehlo.tanh %x : tensor<8x128xf32>
  return %0 : tensor<8x128xf32>
}
