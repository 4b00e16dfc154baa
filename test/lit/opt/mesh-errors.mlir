// RUN: not autoshard-opt --mesh=dp=2,tp=4 %s 2>&1 | filecheck %s --check-prefix=OTHER
// RUN: not autoshard-opt --mesh=dp=2,dp=4 %s 2>&1 | filecheck %s --check-prefix=TWICE
// RUN: not autoshard-opt --mesh=dp=two %s 2>&1 | filecheck %s --check-prefix=NUMBER
// RUN: not autoshard-opt --mesh= %s 2>&1 | filecheck %s --check-prefix=EMPTY

// A mesh that is not one, or not the module's, is refused.
// OTHER:   mesh-errors.mlir:[[# @LINE + 4]]:1: error: --mesh=dp=2,tp=4, but the module has autoshard.mesh = "dp=8". Leave --mesh out, or remove the attribute.
// TWICE:   autoshard-opt: error: --mesh=dp=2,dp=4: mesh dp=2,dp=4 names axis "dp" more than once.
// NUMBER:  autoshard-opt: error: --mesh=dp=two: cannot read mesh 'dp=two': expected an integer
// EMPTY:   autoshard-opt: error: --mesh=: cannot read mesh '': expected
module attributes {autoshard.mesh = "dp=8"} {}
