// RUN: autoshard-opt --mesh=tp=4 --autoshard-import-strategies --autoshard-sharding-propagation --plan-json=%t.with %s | autoshard-opt --autoshard-export-shardy - | filecheck %s --check-prefix=WITH
// RUN: autoshard-opt --mesh=tp=4 --autoshard-import-strategies --autoshard-sharding-propagation=enable-alltoall=false --plan-json=%t.without %s -o %t.mlir
// RUN: filecheck %s --check-prefix=PLAN --input-file %t.mlir
// RUN: autoshard-opt --autoshard-export-shardy %t.mlir | filecheck %s --check-prefix=SHARDY
// RUN: autoshard-opt --autoshard-export-gspmd %t.mlir | filecheck %s --check-prefix=GSPMD
// RUN: %python -c "import json, sys; print([one['kind'] for file in sys.argv[1:] for one in json.load(open(file))['collectives']])" %t.with %t.without | filecheck %s --check-prefix=KINDS

// Rows become columns: by one all-to-all, or by a gather and a slice, which the exports write down.
// KINDS: ['all-to-all', 'all-gather']
// PLAN: module attributes {
// PLAN-SAME: autoshard.enable_alltoall = false
// WITH-LABEL: func.func public @main
// SHARDY-LABEL: func.func public @main
// SHARDY-NOT: autoshard.enable_alltoall
// GSPMD-LABEL: func.func public @main
func.func public @main(%x: tensor<64x128xf32>) -> tensor<64x128xf32> {
  // WITH:      stablehlo.tanh
  // WITH-NEXT: sdy.sharding_constraint {{.*}} <@mesh, [{"tp"}, {}]>
  // WITH-NEXT: sdy.sharding_constraint {{.*}} <@mesh, [{}, {"tp"}]>
  // WITH-NEXT: stablehlo.cosine
  // SHARDY:      stablehlo.tanh
  // SHARDY-NEXT: sdy.sharding_constraint {{.*}} <@mesh, [{"tp"}, {}]>
  // SHARDY-NEXT: sdy.sharding_constraint {{.*}} <@mesh, [{}, {}]>
  // SHARDY-NEXT: sdy.sharding_constraint {{.*}} <@mesh, [{}, {"tp"}]>
  // SHARDY-NEXT: stablehlo.cosine
  // GSPMD:      stablehlo.tanh
  // GSPMD-NEXT: mhlo.sharding = "{devices=[4,1]<=[4]}"
  // GSPMD-NEXT: mhlo.sharding = "{replicated}"
  // GSPMD-NEXT: mhlo.sharding = "{devices=[1,4]<=[4]}"
  // GSPMD-NEXT: stablehlo.cosine
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["[{tp}, {}]"]} : tensor<64x128xf32>
  %1 = stablehlo.cosine %0 {autoshard.in_strategy = ["[{}, {tp}]"]} : tensor<64x128xf32>
  return %1 : tensor<64x128xf32>
}
