// RUN: not autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --split-input-file %s 2>&1 | filecheck %s

// Tuples are checked against the shape and the devices, at the line of the op.
// CHECK: tuple_strategies-errors.mlir:[[# @LINE + 2]]:8: error: operand 0: strategy (2, 1, 1) has 3 numbers, but the shape (8, 12) has 2 dims. Give one number for every dim; 1 leaves a dim whole.
func.func @wrong_rank(%x: tensor<8x12xf32>) -> tensor<8x12xf32> {
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["(2, 1, 1)"]} : tensor<8x12xf32>
  return %0 : tensor<8x12xf32>
}

// -----

// CHECK: tuple_strategies-errors.mlir:[[# @LINE + 2]]:8: error: operand 0: dim 1 (size 12) cannot be cut into 8 pieces by strategy (1, 8): 12 % 8 = 4. Choose a number that divides the size, or cut another dim.
func.func @uneven(%x: tensor<8x12xf32>) -> tensor<8x12xf32> {
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["(1, 8)"]} : tensor<8x12xf32>
  return %0 : tensor<8x12xf32>
}

// -----

// CHECK: tuple_strategies-errors.mlir:[[# @LINE + 2]]:8: error: strategy (4, 4) needs 16 devices, but there are 8. Make the product of the cuts at most 8, or use more devices.
func.func @too_many_devices(%x: tensor<8x12xf32>) -> tensor<8x12xf32> {
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["(4, 4)"]} : tensor<8x12xf32>
  return %0 : tensor<8x12xf32>
}

// -----

// CHECK: tuple_strategies-errors.mlir:[[# @LINE + 2]]:8: error: strategy (1, 3) needs 3 devices, which does not divide the 8 devices there are: 8 % 3 = 2. Choose cuts whose product divides the number of devices.
func.func @no_divisor_of_devices(%x: tensor<8x12xf32>) -> tensor<8x12xf32> {
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["(1, 3)"]} : tensor<8x12xf32>
  return %0 : tensor<8x12xf32>
}

// -----

// CHECK: tuple_strategies-errors.mlir:[[# @LINE + 2]]:8: error: strategy (0, 1): dim 0 is cut into 0 pieces, but the number of pieces must be larger than 0.
func.func @zero_pieces(%x: tensor<8x12xf32>) -> tensor<8x12xf32> {
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["(0, 1)"]} : tensor<8x12xf32>
  return %0 : tensor<8x12xf32>
}

// -----

// CHECK: tuple_strategies-errors.mlir:[[# @LINE + 2]]:8: error: cannot read tuple strategy '(four, 1)': expected an integer at column 2, found 'four'. Write it as '(4, 1)'.
func.func @unreadable(%x: tensor<8x12xf32>) -> tensor<8x12xf32> {
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["(four, 1)"]} : tensor<8x12xf32>
  return %0 : tensor<8x12xf32>
}
