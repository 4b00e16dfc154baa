// RUN: autoshard-opt --autoshard-export-shardy %s | filecheck %s

module attributes {autoshard.mesh = "dp=2,tp=4"} {

// Each device reads one row of each neighbour; what has no neighbour reads zeros.
// CHECK-LABEL: func.func @a_cut_image
func.func @a_cut_image(
    %x: tensor<1x16x16x3xf32>
        {mhlo.sharding = "{devices=[1,4,1,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
    %w: tensor<3x3x3x8xf32> {mhlo.sharding = "{devices=[1,1,1,2,4]<=[8] last_tile_dim_replicate}"})
    -> (tensor<1x16x16x8xf32> {mhlo.sharding = "{devices=[1,4,1,2]<=[2,4]T(1,0)}"}) {
  // CHECK: sdy.manual_computation(%arg0, %arg1)
  // CHECK-SAME: (%[[X:.*]]: tensor<1x4x16x3xf32>, %[[W:.*]]: tensor<3x3x3x4xf32>)
  // CHECK: %[[LAST:.*]] = stablehlo.slice %[[X]] [0:1, 3:4, 0:16, 0:3]
  // CHECK: %[[BEFORE:.*]] = "stablehlo.collective_permute"(%[[LAST]])
  // CHECK-SAME: handle = 1
  // CHECK-SAME{LITERAL}: dense<[[0, 1], [1, 2], [2, 3], [4, 5], [5, 6], [6, 7]]>
  // CHECK: %[[FIRST:.*]] = stablehlo.slice %[[X]] [0:1, 0:1, 0:16, 0:3]
  // CHECK: %[[BEHIND:.*]] = "stablehlo.collective_permute"(%[[FIRST]])
  // CHECK-SAME: handle = 2
  // CHECK: %[[ROWS:.*]] = stablehlo.concatenate %[[BEFORE]], %[[X]], %[[BEHIND]], dim = 1
  // CHECK: stablehlo.convolution(%[[ROWS]], %[[W]])
  // CHECK-SAME{LITERAL}: pad = [[0, 0], [1, 1]]
  // CHECK-SAME: -> tensor<1x4x16x4xf32>
  %y = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {stride = [1, 1], pad = [[1, 1], [1, 1]]}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64,
       mhlo.sharding = "{devices=[1,4,1,2]<=[2,4]T(1,0)}",
       autoshard.strategy = "[{}, {tp}, {}, {}], [{}, {}, {}, {dp}] -> [{}, {tp}, {}, {dp}]"}
      : (tensor<1x16x16x3xf32>, tensor<3x3x3x8xf32>) -> tensor<1x16x16x8xf32>
  return %y : tensor<1x16x16x8xf32>
}

// The result is cut out of a slice: its start is clamped before, where both slices see it.
// CHECK-LABEL: func.func @a_clamped_start
func.func @a_clamped_start(
    %x: tensor<24x4xf32> {mhlo.sharding = "{replicated}"},
    %start: tensor<i32> {mhlo.sharding = "{replicated}"}, %zero: tensor<i32> {mhlo.sharding = "{replicated}"})
    -> (tensor<8x4xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"}) {
  // CHECK: %[[MOST:.*]] = stablehlo.constant dense<16>
  // CHECK: %[[START:.*]] = stablehlo.clamp %{{.*}}, %arg1, %[[MOST]]
  // CHECK: stablehlo.dynamic_slice %arg0, %[[START]], %arg2, sizes = [8, 4]
  %y = stablehlo.dynamic_slice %x, %start, %zero, sizes = [8, 4] {
      mhlo.sharding = "{devices=[8,1]<=[8]}",
      autoshard.strategy = "[{}, {}], [], [] -> [{}, {}]"}
      : (tensor<24x4xf32>, tensor<i32>, tensor<i32>) -> tensor<8x4xf32>
  return %y : tensor<8x4xf32>
}

// A row is written where the update, clamped in the whole operand, falls on a device's block.
// CHECK-LABEL: func.func @an_update_of_cut_rows
func.func @an_update_of_cut_rows(
    %x: tensor<64x4xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"},
    %row: tensor<1x4xf32> {mhlo.sharding = "{replicated}"},
    %start: tensor<i32> {mhlo.sharding = "{replicated}"}, %zero: tensor<i32> {mhlo.sharding = "{replicated}"})
    -> (tensor<64x4xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"}) {
  // CHECK: sdy.manual_computation
  // CHECK: %[[END:.*]] = stablehlo.constant dense<63>
  // CHECK: stablehlo.clamp %{{.*}}, %{{.*}}, %[[END]]
  // CHECK: stablehlo.partition_id
  // CHECK: stablehlo.dynamic_update_slice
  // CHECK-SAME: (tensor<8x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<8x4xf32>
  %y = stablehlo.dynamic_update_slice %x, %row, %start, %zero {
      mhlo.sharding = "{devices=[8,1]<=[8]}",
      autoshard.strategy = "[{dp, tp}, {}], [{}, {}], [], [] -> [{dp, tp}, {}]"}
      : (tensor<64x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<64x4xf32>
  return %y : tensor<64x4xf32>
}

}
