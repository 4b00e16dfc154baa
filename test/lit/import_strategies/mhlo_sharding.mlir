// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --split-input-file %s | filecheck %s

// HloSharding texts of every version become pins over the given mesh.
// CHECK-LABEL: func.func @main
// CHECK-SAME:    %arg0: tensor<8x16xf32> {autoshard.pin = "[{dp}, {}]"}
// CHECK-SAME:    %arg1: tensor<8x16xf32> {autoshard.pin = "[{}, {tp}]"}
// CHECK-SAME:    %arg2: tensor<8x16xf32> {autoshard.pin = "[{}, {}]"}
func.func @main(
    %v2: tensor<8x16xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"},
    %v1: tensor<8x16xf32> {mhlo.sharding = "{devices=[1,4,2]0,4,1,5,2,6,3,7 last_tile_dim_replicate}"},
    %replicated: tensor<8x16xf32> {mhlo.sharding = "{replicated}"}) -> tensor<8x16xf32> {
  // CHECK:        stablehlo.add
  // CHECK-SAME:   autoshard.pin = "[{tp}, {dp}]"
  %0 = stablehlo.add %v2, %v1 {mhlo.sharding = "{devices=[4,2]<=[2,4]T(1,0)}"} : tensor<8x16xf32>
  // CHECK:        stablehlo.multiply
  // CHECK-SAME:   autoshard.pin = "[{dp, tp}, {}]"
  // CHECK-NOT:    mhlo.sharding =
  %1 = stablehlo.multiply %0, %replicated {mhlo.sharding = "{devices=[8,1]<=[8]}"} : tensor<8x16xf32>
  return %1 : tensor<8x16xf32>
}

// -----

// Ops with several results carry a tuple of shardings, and get one pin a result.
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<8x16xf32>, %i: tensor<8x16xi32>) -> (tensor<8x16xf32>, tensor<8x16xi32>) {
  // CHECK:       "stablehlo.sort"
  // CHECK:       autoshard.pin = ["[{dp}, {}]", "[{dp}, {}]"]
  %0:2 = "stablehlo.sort"(%x, %i) <{dimension = 1 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>, %j: tensor<i32>, %k: tensor<i32>):
    %less = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) {mhlo.sharding = "{{devices=[2,1,4]<=[8] last_tile_dim_replicate}, {devices=[2,1,4]<=[8] last_tile_dim_replicate}}"}
      : (tensor<8x16xf32>, tensor<8x16xi32>) -> (tensor<8x16xf32>, tensor<8x16xi32>)
  return %0#0, %0#1 : tensor<8x16xf32>, tensor<8x16xi32>
}
