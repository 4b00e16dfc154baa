// RUN: not autoshard-opt --split-input-file %s 2>&1 | filecheck %s

// Text that does not parse or does not verify: file, line, column, the line and a caret.
// CHECK-NOT:   Traceback
// CHECK:       parse-errors.mlir:[[# @LINE + 4]]:26: error: use of undeclared SSA value name
// CHECK-NEXT:    %0 = stablehlo.add %x, %y : tensor<4xf32>
// CHECK-NEXT:  {{^                         \^}}
func.func @undeclared(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %y : tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// CHECK:       parse-errors.mlir:[[# @LINE + 2]]:8: error: contracting dimension sizes must match for lhs/rhs
func.func @does_not_verify(%x: tensor<4x8xf32>, %y: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]
      : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// -----

// CHECK:       parse-errors.mlir:[[# @LINE + 2]]:{{[0-9]+}}: error: {{.*}}unknown_dialect
func.func @unknown_op(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = unknown_dialect.op %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// CHECK:       parse-errors.mlir:[[# @LINE + 2]]:{{[0-9]+}}: error: custom op 'stablehlo.tanhh' is unknown
func.func @misspelled_op(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.tanhh %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// CHECK:       parse-errors.mlir:[[# @LINE + 1]]:1: error: 'func.func' op arg 0 - unknown mesh: @mesh
func.func @unknown_mesh(
    %x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}]>}) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

// An op from the user's program is placed in the program.
// CHECK:       model.py:42:8: error: 'stablehlo.add' op
func.func @place_in_program(%x: tensor<4xf32>, %y: tensor<8xf32>) -> tensor<4xf32> {
  %0 = "stablehlo.add"(%x, %y) : (tensor<4xf32>, tensor<8xf32>) -> tensor<4xf32> loc("model.py":42:8)
  return %0 : tensor<4xf32>
}
