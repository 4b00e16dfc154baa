// RUN: not autoshard-opt --split-input-file %s 2>%t > %t.out
// RUN: filecheck %s --allow-empty --check-prefix=SILENT < %t.out
// RUN: filecheck %s < %t
// RUN: autoshard-opt --emit=bytecode -o %t.mlirbc %S/text.mlir
// RUN: not autoshard-opt --split-input-file %t.mlirbc 2>&1 | filecheck %s --check-prefix=BYTECODE
// RUN: not autoshard-opt --split-input-file --emit=bytecode %s 2>&1 | filecheck %s --check-prefix=EMIT

// Every module is tried, lines are those of the whole file, and nothing is printed after an error.
// SILENT-NOT: {{.}}
// BYTECODE:  error: --split-input-file: bytecode holds one module. Leave it out.
// EMIT:      autoshard-opt: error: --emit=bytecode with --split-input-file: one bytecode file holds one module. Use --emit=text.
// CHECK:     split_input_file-errors.mlir:[[# @LINE + 2]]:10: error: use of undeclared SSA value name
func.func @first(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %y : tensor<4xf32>
}

// -----

func.func @good(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

// CHECK:     split_input_file-errors.mlir:[[# @LINE + 2]]:10: error: use of undeclared SSA value name
func.func @third(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %z : tensor<4xf32>
}
