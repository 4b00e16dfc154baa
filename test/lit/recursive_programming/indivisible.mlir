// RUN: autoshard-opt --autoshard-recursive-programming='cluster=cpu:7 indivisible=pad' %s -o %t.mlir
// RUN: filecheck %s --input-file %t.mlir
// RUN: autoshard-opt --autoshard-print-costs='cluster=cpu:7' %t.mlir 2>&1 | filecheck %s --check-prefix=COSTS
// RUN: autoshard-opt --autoshard-recursive-programming='cluster=cpu:7' %s 2>&1 | filecheck %s --check-prefix=REFUSE

// No dim has seven equal parts. With padding the long one is cut where it pays; without, all devices do
// the same work, and that is said.
// REFUSE: warning: axis "{{.*}}" of the mesh cuts nothing: no dim of the arguments has 7 equal parts, the largest are 100000, 1024. The devices along it do the same work. Give indivisible=pad, other sizes or other devices.
// COSTS: all-gather
// CHECK: autoshard.indivisible = "pad"
// CHECK-LABEL: func.func public @main(
// CHECK-SAME: %arg0: tensor<100000x1024xf32> {mhlo.sharding = "{replicated}"}
func.func public @main(%x: tensor<100000x1024xf32>, %w: tensor<1024x1024xf32>) -> tensor<100000x1024xf32> {
  // CHECK:      stablehlo.dot_general
  // CHECK-SAME: mhlo.sharding = "{devices=[7,1]<=[7]}"
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<100000x1024xf32>, tensor<1024x1024xf32>) -> tensor<100000x1024xf32>
  return %0 : tensor<100000x1024xf32>
}
