// RUN: autoshard-opt --split-input-file --verify-diagnostics --sdy-sharding-group-import %s

// Errors and notes that the comments expect are no failure.
func.func @next_line(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@+1 {{undeclared SSA value}}
  return %y : tensor<4xf32>
}

// -----

func.func @same_line(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %y : tensor<4xf32> // expected-error {{use of undeclared SSA value name}}
}

// -----

func.func @line_above(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %y : tensor<4xf32>
  // expected-error@above {{undeclared}}
}

// -----

func.func @two_on_the_line_below(%x: tensor<8xf32>, %y: tensor<4x8xf32>) {
  sdy.sharding_group %x group_id=0 : tensor<8xf32>
  // expected-error@below {{must have the same shape}}
  // expected-note-re@below {{see current operation: "sdy.sharding_group"(%{{[a-z0-9]+}})}}
  sdy.sharding_group %y group_id=0 : tensor<4x8xf32>
  return
}

// -----

// expected-error@+3 {{must have the same shape}}
// expected-note@+2 {{see current operation}}
func.func @far_below(%x: tensor<8xf32>, %y: tensor<4x8xf32>) { sdy.sharding_group %x group_id=0 : tensor<8xf32>
  sdy.sharding_group %y group_id=0 : tensor<4x8xf32>
  return
}
