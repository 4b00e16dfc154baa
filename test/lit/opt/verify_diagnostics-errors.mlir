// RUN: not autoshard-opt --split-input-file --verify-diagnostics %s 2>&1 | filecheck %s

// A message that nobody expects and an expected one that does not come are failures.
// CHECK:      verify_diagnostics-errors.mlir:[[# @LINE + 2]]:10: error: unexpected error: use of undeclared SSA value name
func.func @unexpected(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %y : tensor<4xf32>
}

// -----

// CHECK:      verify_diagnostics-errors.mlir:[[# @LINE + 2]]: error: expected warning "slow" was not produced
func.func @missing(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-warning@+1 {{slow}}
  return %x : tensor<4xf32>
}

// -----

// CHECK:      verify_diagnostics-errors.mlir:[[# @LINE + 4]]:10: error: unexpected error: use of undeclared
// CHECK:      verify_diagnostics-errors.mlir:[[# @LINE + 2]]: error: expected error "other words" was not produced
func.func @other_text(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@+1 {{other words}}
  return %y : tensor<4xf32>
}

// -----

// CHECK:      verify_diagnostics-errors.mlir:[[# @LINE + 2]]: error: cannot read this comment. Write // expected-error@+1 {
func.func @unreadable(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error at the next line
  return %x : tensor<4xf32>
}
