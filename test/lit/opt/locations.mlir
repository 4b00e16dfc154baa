// RUN: autoshard-opt --mlir-print-debuginfo %s | filecheck %s
// RUN: autoshard-opt %s | filecheck %s --check-prefix=WITHOUT
// RUN: autoshard-opt --strip-debuginfo --mlir-print-debuginfo %s | filecheck %s --check-prefix=STRIP

// Locations are kept, and printed when asked for.
// CHECK-LABEL: func.func @keeps_the_users_line
// CHECK:         stablehlo.tanh %arg0 : tensor<4xf32> loc([[TANH:#loc[0-9]*]])
// CHECK:       [[LINE:#loc[0-9]*]] = loc("model.py":42:8)
// CHECK:       [[TANH]] = loc("jit(step)/tanh"([[LINE]]))
// WITHOUT-NOT: loc(
// STRIP:       stablehlo.tanh %arg0 : tensor<4xf32> loc(#loc)
// STRIP-NOT:   loc("
func.func @keeps_the_users_line(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.tanh %x : tensor<4xf32> loc("jit(step)/tanh"("model.py":42:8))
  return %0 : tensor<4xf32>
}
