// RUN: rm -rf %t && mkdir %t
// RUN: autoshard-opt %s -o %t/new.mlir > %t.out
// RUN: filecheck %s --allow-empty --check-prefix=SILENT < %t.out
// RUN: filecheck %s < %t/new.mlir
// RUN: cp %s %t/same.mlir
// RUN: autoshard-opt %t/same.mlir -o %t/same.mlir
// RUN: filecheck %s < %t/same.mlir
// RUN: autoshard-opt %s -o - | filecheck %s
// RUN: ls -A %t | filecheck %s --check-prefix=FOLDER

// The output goes to the file and nowhere else; the input may be the output; nothing is left.
// CHECK:        stablehlo.negate %arg0 : tensor<4xf32>
// SILENT-NOT:   {{.}}
// FOLDER:       new.mlir
// FOLDER-NEXT:  same.mlir
// FOLDER-NOT:   {{.}}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.negate %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
