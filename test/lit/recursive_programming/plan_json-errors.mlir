// RUN: not autoshard-opt --canonicalize --plan-json=%t.json %s 2>&1 | filecheck %s
// RUN: not autoshard-opt --split-input-file --plan-json=%t.json %s 2>&1 | filecheck %s --check-prefix=SPLIT
// RUN: not autoshard-opt --autoshard-recursive-programming=cluster=cpu:2 --plan-json=%t/missing/plan.json %s 2>&1 | filecheck %s --check-prefix=FOLDER

// There is nothing to write without a plan, nor where it cannot be written.
// CHECK:  plan_json-errors.mlir: error: --plan-json={{.*}}: the module has no plan. Plan it: --autoshard-recursive-programming='cluster=v5e:4x4'.
// SPLIT:  autoshard-opt: error: --plan-json with --split-input-file: the file holds the plan of one module. Leave one of them out.
// FOLDER: missing/plan.json: error: cannot write: No such file or directory
func.func @main(%x: tensor<8x128xf32>) -> tensor<8x128xf32> {
  %0 = stablehlo.tanh %x : tensor<8x128xf32>
  return %0 : tensor<8x128xf32>
}
