// RUN: not autoshard-opt --autoshard-print-costs=cluster=cpu:8 %s 2>&1 | filecheck %s
// RUN: not autoshard-opt --autoshard-print-costs %s 2>&1 | filecheck %s --check-prefix=CLUSTER
// RUN: not autoshard-opt --autoshard-recursive-programming=cluster=cpu:8 --autoshard-print-costs=cluster=cpu:4 %s 2>&1 | filecheck %s --check-prefix=SIZE
// RUN: not autoshard-opt --autoshard-print-costs='max-rows=-1' %s 2>&1 | filecheck %s --check-prefix=RANGE
// RUN: not autoshard-opt --autoshard-print-costs='overlap=2' %s 2>&1 | filecheck %s --check-prefix=SHARE
// RUN: not autoshard-opt --autoshard-recursive-programming=cluster=cpu:8 --autoshard-print-costs='file=%t/missing/costs.txt' %s 2>&1 | filecheck %s --check-prefix=FILE
// RUN: not autoshard-opt --mesh=a=8 --autoshard-print-costs=cluster=cpu:8 %s 2>&1 | filecheck %s --check-prefix=PLAN

// A module without a plan costs nothing, and a plan needs the machine that it is for.
// CHECK:   print_costs-errors.mlir: error: the module has no autoshard.mesh
// CLUSTER: print_costs-errors.mlir: error: autoshard-print-costs: no cluster is given, and the plan was made without one. Give cluster=v5e:4x4, or the path of a TOML file.
// SIZE:    error: {{.*}}8{{.*}}4
// RANGE:   autoshard-opt: error: autoshard-print-costs: max-rows=-1 width=0 trip-count=100: expected 0 or more.
// SHARE:   autoshard-opt: error: autoshard-print-costs: option overlap=2.0 is out of range. Give 0 to 1.
// FILE:    {{.*}}missing/costs.txt: error: cannot write: No such file or directory
// PLAN:    error: stablehlo.tanh has no mhlo.sharding: nothing has been planned, or the plan was exported.
func.func @main(%x: tensor<8x128xf32>) -> tensor<8x128xf32> {
  %0 = stablehlo.tanh %x : tensor<8x128xf32>
  return %0 : tensor<8x128xf32>
}
