// RUN: not autoshard-opt --autoshard-split-loops='stages=3 batch=x' %s 2>&1 | filecheck %s --check-prefix=CLUSTER
// RUN: not autoshard-opt --autoshard-split-loops='stages=3 cluster=cpu:3 batch=y' %s 2>&1 | filecheck %s --check-prefix=BATCH
// RUN: not autoshard-opt --autoshard-split-loops='stages=0 cluster=cpu:3 batch=x' %s 2>&1 | filecheck %s --check-prefix=STAGES

// CLUSTER: error: autoshard-split-loops: no cluster is given
// BATCH:   error: autoshard-split-loops: no argument is called y
// STAGES:  error: autoshard-split-loops: stages=0 chunks=1 slack=1.05: expected 1 or more
func.func public @main(%x: tensor<8x4xf32> loc("x")) -> tensor<8x4xf32> {
  return %x : tensor<8x4xf32>
}
