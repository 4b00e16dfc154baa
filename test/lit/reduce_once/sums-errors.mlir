// RUN: not autoshard-opt --autoshard-reduce-once='cluster=h100:4 overlap=2' %s 2>&1 | filecheck %s --check-prefix=OVERLAP
// RUN: not autoshard-opt --autoshard-reduce-once %s 2>&1 | filecheck %s --check-prefix=CLUSTER
// RUN: not autoshard-opt --autoshard-reduce-once='cluster=h100:4 memory-limit=much' %s 2>&1 | filecheck %s --check-prefix=LIMIT
// RUN: not autoshard-opt --autoshard-reduce-once=cluster=h100:4 %s 2>&1 | filecheck %s --check-prefix=PLAN

// Options that say nothing, a plan without a cluster, and a module without a plan.
// OVERLAP: autoshard-reduce-once: option overlap=2.0 is out of range. Give 0 to 1.
// CLUSTER: autoshard-reduce-once: no cluster is given, and the plan was made without one.
// LIMIT: autoshard-reduce-once: option memory-limit=much: expected bytes
// PLAN: argument 0 of @main has no mhlo.sharding: the plan is not complete.
module attributes {autoshard.mesh = "dp=4"} {
func.func public @main(%x: tensor<64x8xf32>) -> tensor<8x8xf32> {
  %g = stablehlo.dot_general %x, %x, contracting_dims = [0] x [0]
      : (tensor<64x8xf32>, tensor<64x8xf32>) -> tensor<8x8xf32>
  return %g : tensor<8x8xf32>
}
}
