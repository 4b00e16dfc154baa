// RUN: not autoshard-opt --emit=xml %s 2>&1 | filecheck %s --check-prefix=EMIT
// RUN: not autoshard-opt --split-input-files %s 2>&1 | filecheck %s --check-prefix=FLAG
// RUN: not autoshard-opt -x %s 2>&1 | filecheck %s --check-prefix=SHORT
// RUN: not autoshard-opt %s -o 2>&1 | filecheck %s --check-prefix=MISSING
// RUN: not autoshard-opt --print-plan %s 2>&1 | filecheck %s --check-prefix=NEAR

// Every wrong flag is one line that says where to look.
// EMIT:     autoshard-opt: error: argument --emit: invalid choice: 'xml' (choose from {{.*}}text{{.*}}generic{{.*}}bytecode{{.*}}). autoshard-opt --help shows how it is used.
// FLAG:     autoshard-opt: error: unknown pass or option --split-input-files. Did you mean "--split-input-file"?
// SHORT:    autoshard-opt: error: unrecognized arguments: -x.
// MISSING:  autoshard-opt: error: argument -o: expected one argument.
// NEAR:     autoshard-opt: error: unknown pass or option --print-plan. Did you mean "--autoshard-print-plan"?
module {}
