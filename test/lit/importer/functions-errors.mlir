// RUN: not autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation --split-input-file %s 2>&1 | filecheck %s

// The program is the function main.
// CHECK: functions-errors.mlir:{{.*}}error: no function main; functions: other, step. Rename the entry function to main.
func.func @step(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.tanh %x : tensor<8xf32>
  return %0 : tensor<8xf32>
}
func.func @other(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

// -----

// CHECK: functions-errors.mlir:{{.*}}error: no function main; functions: none.
module {}

// -----

// CHECK: functions-errors.mlir:{{.*}}error: function main has no body
func.func private @main(tensor<8xf32>) -> tensor<8xf32>

// -----

// CHECK: functions-errors.mlir:{{.*}}error: a function that calls itself cannot be planned
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = func.call @main(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
