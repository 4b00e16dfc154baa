// RUN: autoshard-opt --autoshard-recursive-programming='cluster=h100:2x4 mesh=dp=8' --autoshard-print-costs=width=240 %s 2>&1 >%t.mlir | filecheck %s
// RUN: autoshard-opt --mesh=dp=8 --autoshard-import-strategies --autoshard-sharding-propagation --autoshard-print-costs='cluster=h100:2x4 width=240' %s 2>&1 >%t.mlir | filecheck %s
// RUN: autoshard-opt --autoshard-recursive-programming='cluster=h100:2x4 mesh=dp=8' --autoshard-print-costs='file=%t.txt max-rows=1 width=240' %s -o %t.mlir && filecheck %s --check-prefix=ROWS < %t.txt
// RUN: autoshard-opt --autoshard-recursive-programming='cluster=h100:2x4 mesh=dp=8' %s | sed 's/autoshard.plan = "[^"]*"//' > %t.before
// RUN: sed 's/autoshard.plan = "[^"]*"//' %t.mlir | diff %t.before -

// Every op, collective and large tensor of a plan, whichever pass made it; equal rows are one, and
// the module stays as it is.
// CHECK:       plan on mesh dp=8 (8 devices of h100:2x4)
// CHECK-NEXT:  one step: {{.*}}, compute {{.*}}, communication {{.*}}
// CHECK:       compute
// CHECK:         1{{ +}}dot_general{{ +}}print_costs.mlir:{{[0-9]+ +}}128x128xf32{{ +}}[{dp}, {}], [{dp}, {}] -> [{}, {}]{{ +}}1{{ +}}2.68e+08
// CHECK:         together
// CHECK:       communication
// CHECK:         all-reduce{{ +}}dp{{ +}}result 0 of dot_general{{ +}}128x128xf32{{ +}}print_costs.mlir:{{[0-9]+ +}}1{{ +}}112 KiB {{.*}} 100.0%
// CHECK:         together
// CHECK:       memory at the peak
// CHECK:         argument *{{ +}}2{{ +}}65536x128xf32{{ +}}[{dp}, {}]{{ +}}8 MiB
// CHECK:         together
// CHECK:       memory over the step
// CHECK:         0 to 0
// ROWS:        compute
// ROWS:          and 1 more
// ROWS:        communication
func.func public @main(
    %x: tensor<65536x128xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"},
    %y: tensor<65536x128xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"})
    -> (tensor<128x128xf32> {mhlo.sharding = "{replicated}"}) {
  %t = stablehlo.tanh %x : tensor<65536x128xf32>

  %0 = stablehlo.dot_general %t, %y, contracting_dims = [0] x [0] : (tensor<65536x128xf32>, tensor<65536x128xf32>) -> tensor<128x128xf32>
  return %0 : tensor<128x128xf32>
}
