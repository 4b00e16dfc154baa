// RUN: autoshard-opt --mesh=dp=2,tp=4 %s | filecheck %s
// RUN: autoshard-opt --mesh dp=2,tp=4 %s | autoshard-opt --mesh=dp=2,tp=4 | filecheck %s
// RUN: autoshard-opt %s | filecheck %s --check-prefix=NONE

// The mesh is written on a module that has none; the same mesh again changes nothing.
// CHECK:      module attributes {autoshard.mesh = "dp=2,tp=4"}
// NONE-NOT:   autoshard.mesh
module {}
