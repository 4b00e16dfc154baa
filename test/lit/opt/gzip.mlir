// RUN: gzip -c %s > %t.mlir.gz
// RUN: autoshard-opt %t.mlir.gz | filecheck %s
// RUN: autoshard-opt < %t.mlir.gz | filecheck %s
// RUN: autoshard-opt --emit=bytecode %s | gzip -c > %t.mlirbc.gz
// RUN: autoshard-opt %t.mlirbc.gz | filecheck %s

// Packed text and packed bytecode are unpacked, whatever the file is called.
// CHECK:  stablehlo.negate %arg0 : tensor<4xf32>
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.negate %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
