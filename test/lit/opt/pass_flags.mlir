// RUN: autoshard-opt --cse --symbol-dce --mlir-print-ir-after-all %s 2>&1 >%t | filecheck %s
// RUN: filecheck %s --check-prefix=MODULE < %t
// RUN: autoshard-opt --symbol-dce %s --cse --mlir-print-ir-after-all 2>&1 >%t | filecheck %s --check-prefix=OTHER

// Passes run in the order of their flags; the module is printed after each.
// CHECK:          IR Dump After cse
// CHECK-COUNT-1:  stablehlo.add
// CHECK:          func.func private @nobody
// CHECK:          IR Dump After symbol-dce
// CHECK-NOT:      @nobody
// OTHER:          IR Dump After symbol-dce
// OTHER-COUNT-2:  stablehlo.add
// OTHER:          IR Dump After cse
// MODULE-NOT:     IR Dump
// MODULE:         func.func @main
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  %1 = stablehlo.add %x, %x : tensor<4xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<4xf32>
  return %2 : tensor<4xf32>
}
func.func private @nobody(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
