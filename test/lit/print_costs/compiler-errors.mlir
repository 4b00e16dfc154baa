// RUN: not autoshard-opt --autoshard-recursive-programming='cluster=v5p:2x2x2 compiler=xla-tup' %s 2>&1 | filecheck %s
// RUN: not autoshard-opt --autoshard-recursive-programming=cluster=v5p:2x2x2 --autoshard-print-costs='compiler=xla-tpu:without=fusion.cast' %s 2>&1 | filecheck %s --check-prefix=RULE

// Names of compilers and rules that mean nothing are refused, with the nearest one.
// CHECK: error: no compiler "xla-tup" is known, only xla-cpu, xla-gpu, xla-tpu, unknown. Did you mean "xla-tpu"?
// RULE:  error: compiler: no rule is called "fusion.cast". Did you mean "fusion.casts"? docs/design/compilers.md lists them.
func.func @main(%x: tensor<8x128xf32>) -> tensor<8x128xf32> {
  %0 = stablehlo.tanh %x : tensor<8x128xf32>
  return %0 : tensor<8x128xf32>
}
