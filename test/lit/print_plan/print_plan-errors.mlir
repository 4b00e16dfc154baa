// RUN: not autoshard-opt --autoshard-print-plan %s 2>&1 | filecheck %s
// RUN: not autoshard-opt --autoshard-print-plan='max-row=3' %s 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: not autoshard-opt --autoshard-print-plan='max-rows=many' %s 2>&1 | filecheck %s --check-prefix=VALUE
// RUN: not autoshard-opt --autoshard-print-plan='max-rows=-1' %s 2>&1 | filecheck %s --check-prefix=RANGE
// RUN: not autoshard-opt --autoshard-print-plan='max-rows=1 max-rows=2' %s 2>&1 | filecheck %s --check-prefix=TWICE
// RUN: not autoshard-opt --autoshard-print-plan='=3' %s 2>&1 | filecheck %s --check-prefix=FORM

// A module without a plan has nothing to print; an option of a pass is checked before it runs.
// CHECK:   print_plan-errors.mlir: error: the module has no autoshard.mesh: nothing has been planned.
// OPTION:  autoshard-opt: error: autoshard-print-plan: unknown option "max-row". Did you mean "max-rows"? Options: file, max-rows, width.
// VALUE:   autoshard-opt: error: autoshard-print-plan: option max-rows=many: expected integer. Default: max-rows=100.
// RANGE:   autoshard-opt: error: autoshard-print-plan: max-rows=-1 width=0: expected 0 or more.
// TWICE:   autoshard-opt: error: autoshard-print-plan: option "max-rows" is given twice.
// FORM:    autoshard-opt: error: autoshard-print-plan: cannot read options at '=3'. Write option=value, separated by spaces.
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
