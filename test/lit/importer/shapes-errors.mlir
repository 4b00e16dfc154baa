// RUN: not autoshard-opt --mesh=dp=2,tp=4 --autoshard-sharding-propagation --split-input-file %s 2>&1 | filecheck %s

// Dynamic shapes are refused with the op and its line.
// CHECK: shapes-errors.mlir:[[# @LINE + 2]]:8: error: stablehlo.dynamic_reshape: dynamic shape tensor<?x16xf32>. autoshard plans static shapes only: lower the function with concrete shapes.
func.func @main(%x: tensor<8x16xf32>, %s: tensor<2xi32>) -> tensor<?x16xf32> {
  %0 = stablehlo.dynamic_reshape %x, %s : (tensor<8x16xf32>, tensor<2xi32>) -> tensor<?x16xf32>
  return %0 : tensor<?x16xf32>
}

// -----

// CHECK: shapes-errors.mlir:[[# @LINE + 1]]:1: error: func.func: dynamic shape tensor<?xf32>.
func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
  return %x : tensor<?xf32>
}
