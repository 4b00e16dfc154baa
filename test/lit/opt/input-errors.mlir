// RUN: not autoshard-opt %t.none.mlir 2>&1 | filecheck %s --check-prefix=NONE
// RUN: not autoshard-opt %S 2>&1 | filecheck %s --check-prefix=FOLDER
// RUN: %python -c "import sys; sys.stdout.buffer.write(bytes(range(255, 128, -1)))" > %t.binary
// RUN: not autoshard-opt %t.binary 2>&1 | filecheck %s --check-prefix=BINARY
// RUN: autoshard-opt --emit=bytecode %S/text.mlir | head -c 100 > %t.short
// RUN: not autoshard-opt %t.short 2>&1 | filecheck %s --check-prefix=SHORT
// RUN: not autoshard-opt %s %s 2>&1 | filecheck %s --check-prefix=TWO

// What cannot be read is named, without a traceback.
// NONE-NOT:    Traceback
// NONE:        {{.*}}.none.mlir: error: cannot read: No such file or directory
// FOLDER-NOT:  Traceback
// FOLDER:      {{.*}}opt: error: cannot read: Is a directory
// BINARY-NOT:  Traceback
// BINARY:      {{.*}}.binary: error: neither MLIR bytecode nor UTF-8 text. Give a StableHLO module as text or bytecode.
// SHORT-NOT:   Traceback
// SHORT:       {{.*}}.short: error:
// TWO:         autoshard-opt: error: unrecognized arguments: {{.*}}input-errors.mlir. autoshard-opt --help shows how it is used.
module {}
