// RUN: not autoshard-opt --autoshard-import-strategies --split-input-file %s 2>&1 | filecheck %s

// Layouts of different device counts: the error is at the line of the call that brought the second.
// CHECK: marks-errors.mlir:[[# @LINE + 5]]:8: error: layout over x=4 needs 4 devices, the mesh dp=2,tp=4 has 8. Give every layout a device matrix of 8 devices, or another mesh.
func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.custom_call @autoshard.mark(%x) {
      autoshard.group = 0 : i64, autoshard.index = 0 : i64, autoshard.role = "in",
      autoshard.layout = "mesh[dp=2,tp=4] [{dp}, {}]"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %1 = stablehlo.custom_call @autoshard.mark(%0) {
      autoshard.group = 1 : i64, autoshard.index = 0 : i64, autoshard.role = "in",
      autoshard.layout = "mesh[x=4] [{x}, {}]"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %1 : tensor<8x16xf32>
}

// -----

// CHECK: marks-errors.mlir:[[# @LINE + 2]]:8: error: operand 1: sharding [{dp}, {}, {}] has 3 dims, but the shape (8, 16) has 2. Give one entry for every dim.
func.func @wrong_rank(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.custom_call @autoshard.mark(%x) {
      autoshard.group = 0 : i64, autoshard.index = 1 : i64, autoshard.role = "in",
      autoshard.layout = "mesh[dp=2,tp=4] [{dp}, {}, {}]"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
