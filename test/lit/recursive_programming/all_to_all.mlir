// RUN: autoshard-opt --mesh=tp=4 --autoshard-recursive-programming='cluster=cpu:4' --plan-json=%t.with %s -o %t.mlir
// RUN: autoshard-opt --mesh=tp=4 --autoshard-recursive-programming='cluster=cpu:4 enable-alltoall=false' --plan-json=%t.without %s -o %t.mlir
// RUN: autoshard-opt --autoshard-print-costs='cluster=cpu:4' %t.mlir 2>&1 | filecheck %s
// RUN: %python -c "import json, sys; print([one['kind'] for file in sys.argv[1:] for one in json.load(open(file))['collectives']])" %t.with %t.without | filecheck %s --check-prefix=KINDS

// What is pinned has to move; without all-to-all a gather moves it, and what prints the costs of the
// plan counts it so.
// KINDS: ['all-to-all', 'all-gather']
// CHECK-NOT: all-to-all
// CHECK: all-gather
// CHECK-NOT: all-to-all
func.func public @main(%x: tensor<64x128xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"}) -> (tensor<64x128xf32> {mhlo.sharding = "{devices=[1,4]<=[4]}"}) {
  %0 = stablehlo.tanh %x : tensor<64x128xf32>
  return %0 : tensor<64x128xf32>
}
