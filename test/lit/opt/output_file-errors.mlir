// RUN: rm -rf %t && mkdir %t
// RUN: not autoshard-opt %s -o %t/new.mlir 2>&1 | filecheck %s
// RUN: echo before > %t/old.mlir
// RUN: not autoshard-opt %s -o %t/old.mlir
// RUN: filecheck %s --check-prefix=OLD < %t/old.mlir
// RUN: ls -A %t | filecheck %s --check-prefix=FOLDER
// RUN: not autoshard-opt %S/text.mlir -o %t/none/out.mlir 2>&1 | filecheck %s --check-prefix=NONE
// RUN: not autoshard-opt %S/text.mlir -o %t 2>&1 | filecheck %s --check-prefix=IS-FOLDER

// After an error there is no output file, and one that was there is as before.
// CHECK:       output_file-errors.mlir:[[# @LINE + 7]]:26: error: use of undeclared SSA value name
// OLD:         before
// FOLDER:      old.mlir
// FOLDER-NOT:  {{.}}
// NONE:        {{.*}}none/out.mlir: error: cannot write: No such file or directory
// IS-FOLDER:   error: cannot write: Is a directory
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %y : tensor<4xf32>
  return %0 : tensor<4xf32>
}
