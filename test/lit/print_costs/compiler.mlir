// RUN: autoshard-opt --autoshard-recursive-programming='cluster=v5p:2x2x2 mesh=dp=8' --autoshard-print-costs='compiler=xla-tpu-0.0.42:without=fusion.matmul_operands,fusion.matmul_results width=160' %s 2>&1 >%t.mlir | filecheck %s
// RUN: autoshard-opt --autoshard-recursive-programming='cluster=v5p:2x2x2 compiler=unknown mesh=dp=8' --autoshard-print-costs=width=160 %s 2>&1 >%t.mlir | filecheck %s --check-prefix=UNKNOWN

// With a rule switched off a matmul reads the tanh from memory: 2 MiB on each of 8 devices.
// CHECK:      plan on mesh dp=8 (8 devices of v5p:2x2x2)
// CHECK-NEXT: compiler: xla-tpu-0.0.42:without=fusion.matmul_operands,fusion.matmul_results
// CHECK-NEXT: without fusion.matmul_operands, fusion.matmul_results of xla-tpu-0.0.42: {{.*}} instead of {{.*}}, 5.094 MiB instead of 4.062 MiB
// CHECK-NEXT: one step:

// A plan is costed with the compiler that it was made for.
// UNKNOWN:      plan on mesh dp=8 (8 devices of v5p:2x2x2)
// UNKNOWN-NEXT: one step: {{.*}}
// UNKNOWN:      memory at the peak
// UNKNOWN:      together {{.*}}6.062 MiB
func.func public @main(%x: tensor<32768x128xf32>, %w: tensor<128x128xf32>) -> tensor<32768x128xf32> {
  %t = stablehlo.tanh %x : tensor<32768x128xf32>
  %0 = stablehlo.dot_general %t, %w, contracting_dims = [1] x [0] : (tensor<32768x128xf32>, tensor<128x128xf32>) -> tensor<32768x128xf32>
  return %0 : tensor<32768x128xf32>
}
