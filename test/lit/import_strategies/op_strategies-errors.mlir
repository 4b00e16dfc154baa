// RUN: not autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --split-input-file %s 2>&1 | filecheck %s

// One strategy for each operand, no more and no less.
// CHECK: op_strategies-errors.mlir:[[# @LINE + 2]]:8: error: stablehlo.add: autoshard.in_strategy has 1 strategies, the op has 2 operands. Give one each; "None" for those you leave open.
func.func @wrong_number_of_operands(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.add %x, %x {autoshard.in_strategy = ["(4, 2)"]} : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// -----

// CHECK: op_strategies-errors.mlir:[[# @LINE + 2]]:8: error: stablehlo.tanh: autoshard.out_strategy has 2 strategies, the op has 1 results.
func.func @wrong_number_of_results(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.tanh %x {autoshard.out_strategy = ["(4, 2)", "None"]} : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// -----

// CHECK: op_strategies-errors.mlir:[[# @LINE + 2]]:8: error: axis "mp" is not an axis of mesh "dp=2,tp=4" (axes: "dp", "tp"). Use one of these or add the axis to the mesh.
func.func @unknown_axis(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["[{mp}, {}]"]} : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// -----

// CHECK: op_strategies-errors.mlir:[[# @LINE + 2]]:8: error: axis "dp" (size 2) is used more than once in [{dp}, {dp}]. A device axis can cut a value only once
func.func @axis_used_twice(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["[{dp}, {dp}]"]} : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// -----

// CHECK: op_strategies-errors.mlir:[[# @LINE + 2]]:8: error: operand 0: sharding [{dp}] has 1 dims, but the shape (8, 16) has 2. Give one entry for every dim.
func.func @wrong_rank(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["[{dp}]"]} : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// -----

// CHECK: op_strategies-errors.mlir:[[# @LINE + 2]]:8: error: result 0: dim 0 (size 6) cannot be split by axis "tp" (size 4): 6 % 4 = 2. Choose another dim or another axis, or pad the dim to 8.
func.func @uneven(%x: tensor<6x16xf32>) -> tensor<6x16xf32> {
  %0 = stablehlo.tanh %x {autoshard.out_strategy = ["[{tp}, {}]"]} : tensor<6x16xf32>
  return %0 : tensor<6x16xf32>
}

// -----

// CHECK: op_strategies-errors.mlir:[[# @LINE + 2]]:8: error: layout over dp=4,tp=4 needs 16 devices, the mesh dp=2,tp=4 has 8. Give every layout a device matrix of 8 devices, or another mesh.
func.func @too_many_devices(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["mesh[dp=4,tp=4] [{dp}, {}]"]} : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// -----

// CHECK: op_strategies-errors.mlir:[[# @LINE + 2]]:8: error: cannot read sharding '[{dp}, {}': expected ',' at column 10, found the end of the text. Write it as '[{dp}, {sp, tp}, {}]'.
func.func @unreadable(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["[{dp}, {}"]} : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// -----

// Strategies are texts in a list.
// CHECK: op_strategies-errors.mlir:{{.*}}: error: stablehlo.tanh: autoshard.in_strategy = 7 : i64 is no list of texts. Write it as autoshard.in_strategy = ["(2, 1)", "None"].
func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.tanh %x {autoshard.in_strategy = 7} : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
