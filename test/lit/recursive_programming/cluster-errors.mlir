// RUN: not autoshard-opt --autoshard-recursive-programming %s 2>&1 | filecheck %s
// RUN: not autoshard-opt --autoshard-recursive-programming='cluster=v5x:2x4' %s 2>&1 | filecheck %s --check-prefix=CHIP
// RUN: not autoshard-opt --autoshard-recursive-programming='cluster=missing.toml' %s 2>&1 | filecheck %s --check-prefix=FILE
// RUN: not autoshard-opt --autoshard-recursive-programming='cluster=v5e:2x4 mesh=a=2,b=2' %s 2>&1 | filecheck %s --check-prefix=SIZE
// RUN: not autoshard-opt --autoshard-recursive-programming='cluster=v5e:2x4 mesh=a' %s 2>&1 | filecheck %s --check-prefix=MESH
// RUN: not autoshard-opt --mesh=b=8 --autoshard-recursive-programming='cluster=v5e:2x4 mesh=a=8' %s 2>&1 | filecheck %s --check-prefix=OTHER
// RUN: not autoshard-opt --autoshard-recursive-programming='cluster=v5e:2x4 mem-coeff=cheap' %s 2>&1 | filecheck %s --check-prefix=COEFF
// RUN: not autoshard-opt --autoshard-recursive-programming='cluster=v5e:2x4 mem-coeff=-1' %s 2>&1 | filecheck %s --check-prefix=RANGE
// RUN: not autoshard-opt --autoshard-recursive-programming='cluster=v5e:2x4 memory-limit=lots' %s 2>&1 | filecheck %s --check-prefix=BYTES
// RUN: not autoshard-opt --autoshard-recursive-programming='cluster=v5e:2x4 time-limit=0' %s 2>&1 | filecheck %s --check-prefix=TIME

// Nothing is guessed about the machine, and numbers that mean nothing are refused.
// CHECK: cluster-errors.mlir: error: autoshard-recursive-programming: no cluster is given: times depend on the chips and their links. Give cluster=v5e:4x4, or the path of a TOML file.
// CHIP:  error: cluster "v5x:2x4": no chip "v5x" is known
// FILE:  missing.toml: error:
// SIZE:  error: mesh a=2,b=2 has 4 devices, the cluster v5e:2x4 has 8. Give a mesh or a cluster of another size.
// MESH:  autoshard-opt: error: autoshard-recursive-programming: option mesh=a: cannot read mesh 'a'
// OTHER: error: mesh=a=8, but the module has autoshard.mesh = "b=8". Leave the option out, or remove the attribute.
// COEFF: autoshard-opt: error: autoshard-recursive-programming: option mem-coeff=cheap: expected number or auto. Default: mem-coeff=auto.
// RANGE: autoshard-opt: error: autoshard-recursive-programming: option mem-coeff=-1.0 is out of range. Give auto, or 0 or more.
// BYTES: autoshard-opt: error: autoshard-recursive-programming: option memory-limit=lots: expected bytes, with a unit if you like. Write 14GiB, 16GB or 16e9.
// TIME:  autoshard-opt: error: autoshard-recursive-programming: option time-limit=0.0 is out of range. Give none, or more than 0.
func.func @main(%x: tensor<8x128xf32>) -> tensor<8x128xf32> {
  %0 = stablehlo.tanh %x : tensor<8x128xf32>
  return %0 : tensor<8x128xf32>
}
