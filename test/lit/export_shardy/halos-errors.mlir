// RUN: not autoshard-opt --autoshard-export-shardy %s 2>&1 | filecheck %s

module attributes {autoshard.mesh = "dp=2,tp=4", autoshard.indivisible = "pad"} {

// Blocks that are not equal are the partitioner's, which writes such an update nowhere.
// CHECK: stablehlo.dynamic_update_slice: a dim of it is cut that the partitioner does not cut right,
// CHECK-SAME: and the shape (62, 4) does not fall into equal blocks of [{dp, tp}, {}]
// CHECK-SAME: Plan the module again, or leave that dim whole.
func.func @main(
    %x: tensor<62x4xf32> {mhlo.sharding = "{replicated}"},
    %row: tensor<1x4xf32> {mhlo.sharding = "{replicated}"},
    %start: tensor<i32> {mhlo.sharding = "{replicated}"}, %zero: tensor<i32> {mhlo.sharding = "{replicated}"})
    -> (tensor<62x4xf32> {mhlo.sharding = "{replicated}"}) {
  %y = stablehlo.dynamic_update_slice %x, %row, %start, %zero {
      mhlo.sharding = "{devices=[8,1]<=[8]}",
      autoshard.strategy = "[{dp, tp}, {}], [{}, {}], [], [] -> [{dp, tp}, {}]"}
      : (tensor<62x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<62x4xf32>
  return %y : tensor<62x4xf32>
}

}
