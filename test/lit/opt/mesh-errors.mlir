// RUN: not autoshard-opt --mesh=dp=2,tp=4 %s 2>&1 | filecheck %s --check-prefix=OTHER
// RUN: not autoshard-opt --mesh=dp=2,dp=4 %s 2>&1 | filecheck %s --check-prefix=TWICE
// RUN: not autoshard-opt --mesh=dp=two %s 2>&1 | filecheck %s --check-prefix=NUMBER
// RUN: not autoshard-opt --mesh= %s 2>&1 | filecheck %s --check-prefix=EMPTY
// RUN: sed 's/dp=8/dp/' %s | not autoshard-opt --mesh=dp=8 2>&1 | filecheck %s --check-prefix=NONE

// A mesh that is not one, or not the module's, is refused.
// OTHER:   mesh-errors.mlir:[[# @LINE + 5]]:1: error: --mesh=dp=2,tp=4, but the module has autoshard.mesh = "dp=8". Leave --mesh out, or remove the attribute.
// TWICE:   autoshard-opt: error: --mesh=dp=2,dp=4: mesh dp=2,dp=4 names axis "dp" more than once.
// NONE:    <stdin>:{{[0-9]+}}:1: error: --mesh=dp=8, but the module has autoshard.mesh = "dp". Leave --mesh out, or remove the attribute.
// NUMBER:  autoshard-opt: error: --mesh=dp=two: cannot read mesh 'dp=two': expected an integer
// EMPTY:   autoshard-opt: error: --mesh=: cannot read mesh '': expected
module attributes {autoshard.mesh = "dp=8"} {}
