// RUN: autoshard-opt --emit=bytecode -o %t.mlirbc %s
// RUN: autoshard-opt %t.mlirbc | filecheck %s
// RUN: autoshard-opt < %t.mlirbc | filecheck %s
// RUN: autoshard-opt --mlir-print-debuginfo %t.mlirbc | filecheck %s --check-prefix=PLACE

// Bytecode holds the same module, and remembers where each op was written.
// CHECK:  func.func @main(%arg0: tensor<4xf32>)
// CHECK:    stablehlo.negate %arg0 : tensor<4xf32>
// PLACE:    stablehlo.negate %arg0 : tensor<4xf32> loc([[NEGATE:#loc[0-9]*]])
// PLACE:  [[NEGATE]] = loc("{{.*}}bytecode.mlir":[[# @LINE + 2]]:8)
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.negate %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
