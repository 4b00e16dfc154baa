// RUN: not autoshard-opt --autoshard-refine='compiles=2' %s 2>&1 | filecheck %s
// RUN: not autoshard-opt --autoshard-refine='cluster=cpu:2 compiles=0' %s 2>&1 | filecheck %s --check-prefix=NONE
// RUN: not autoshard-opt --autoshard-refine='cluster=ascend910b:8' %s 2>&1 | filecheck %s --check-prefix=UNKNOWN

// Without a cluster there is nothing to compile for, without a compile nothing to choose by.
// CHECK: refine-errors.mlir: error: autoshard-refine: no cluster is given
// NONE: error: refine: compiles=0 is out of range. Give more than 0.
// UNKNOWN: error: cluster ascend910b:8: no compiler for ascend910b is known.
func.func public @main(%x: tensor<256x1024xf32>) -> tensor<256x1024xf32> {
  %y = stablehlo.tanh %x : tensor<256x1024xf32>
  return %y : tensor<256x1024xf32>
}
