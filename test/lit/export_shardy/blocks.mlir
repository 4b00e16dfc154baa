// RUN: autoshard-opt --autoshard-export-shardy %s | filecheck %s

module attributes {autoshard.mesh = "dp=2,tp=4"} {

// CHECK-LABEL: func.func @each_device_transforms_its_rows
func.func @each_device_transforms_its_rows(
    %x: tensor<16x64xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"})
    -> (tensor<16x33xcomplex<f32>> {mhlo.sharding = "{devices=[8,1]<=[8]}"}) {
  // CHECK: %[[Y:.*]] = sdy.manual_computation(%arg0)
  // CHECK-SAME: in_shardings=[<@mesh, [{"dp", "tp"}, {}]>]
  // CHECK-SAME: out_shardings=[<@mesh, [{"dp", "tp"}, {}]>] manual_axes={"dp", "tp"}
  // CHECK-SAME: (%[[ROWS:.*]]: tensor<2x64xf32>)
  // CHECK-NEXT: %[[F:.*]] = stablehlo.fft %[[ROWS]], type =  RFFT, length = [64]
  // CHECK-SAME: (tensor<2x64xf32>) -> tensor<2x33xcomplex<f32>>
  // CHECK-NEXT: sdy.return %[[F]]
  // CHECK: sdy.sharding_constraint %[[Y]] <@mesh, [{"dp", "tp"}, {}]>
  %y = stablehlo.fft %x, type = RFFT, length = [64] {
      mhlo.sharding = "{devices=[8,1]<=[8]}",
      autoshard.strategy = "[{dp, tp}, {}] -> [{dp, tp}, {}]"}
      : (tensor<16x64xf32>) -> tensor<16x33xcomplex<f32>>
  return %y : tensor<16x33xcomplex<f32>>
}

// What is whole on every device needs no blocks.
// CHECK-LABEL: func.func @a_whole_transform
func.func @a_whole_transform(%x: tensor<16x64xf32> {mhlo.sharding = "{replicated}"})
    -> (tensor<16x33xcomplex<f32>> {mhlo.sharding = "{replicated}"}) {
  // CHECK-NOT: sdy.manual_computation
  // CHECK: stablehlo.fft %arg0
  %y = stablehlo.fft %x, type = RFFT, length = [64] {
      mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}] -> [{}, {}]"}
      : (tensor<16x64xf32>) -> tensor<16x33xcomplex<f32>>
  return %y : tensor<16x33xcomplex<f32>>
}

// CHECK-LABEL: func.func @largest_of_each_row
func.func @largest_of_each_row(
    %x: tensor<16x64xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"})
    -> (tensor<16x2xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"},
        tensor<16x2xi32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"}) {
  // CHECK: sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"dp"}, {}]>]
  // CHECK: chlo.top_k(%{{.*}}, k = 2) : tensor<8x64xf32> -> (tensor<8x2xf32>, tensor<8x2xi32>)
  %values, %places = chlo.top_k(%x, k = 2) {
      mhlo.sharding = "{{devices=[2,1,4]<=[8] last_tile_dim_replicate}, {devices=[2,1,4]<=[8] last_tile_dim_replicate}}",
      autoshard.strategy = "[{dp}, {}] -> [{dp}, {}], [{dp}, {}]"}
      : tensor<16x64xf32> -> (tensor<16x2xf32>, tensor<16x2xi32>)
  return %values, %places : tensor<16x2xf32>, tensor<16x2xi32>
}

// Every device has one of the four groups.
// CHECK-LABEL: func.func @groups_of_features
func.func @groups_of_features(
    %x: tensor<8x16x16x16xf32>
        {mhlo.sharding = "{devices=[1,1,1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
    %w: tensor<3x3x4x16xf32>
        {mhlo.sharding = "{devices=[1,1,1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"})
    -> (tensor<8x16x16x16xf32>
        {mhlo.sharding = "{devices=[1,1,1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"}) {
  // CHECK: sdy.manual_computation(%arg0, %arg1)
  // CHECK: stablehlo.convolution
  // CHECK-SAME: feature_group_count = 1
  // CHECK-SAME: (tensor<8x16x16x4xf32>, tensor<3x3x4x4xf32>) -> tensor<8x16x16x4xf32>
  %y = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {stride = [1, 1], pad = [[1, 1], [1, 1]]} {
      batch_group_count = 1 : i64, feature_group_count = 4 : i64,
      mhlo.sharding = "{devices=[1,1,1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}",
      autoshard.strategy = "[{}, {}, {}, {tp}], [{}, {}, {}, {tp}] -> [{}, {}, {}, {tp}]"}
      : (tensor<8x16x16x16xf32>, tensor<3x3x4x16xf32>) -> tensor<8x16x16x16xf32>
  return %y : tensor<8x16x16x16xf32>
}

// The gradient of its weights from the images of each device, summed over devices outside.
// CHECK-LABEL: func.func @a_gradient_of_groups
func.func @a_gradient_of_groups(
    %x: tensor<8x16x16x16xf32>
        {mhlo.sharding = "{devices=[2,1,1,1,4]<=[8] last_tile_dim_replicate}"},
    %g: tensor<8x16x16x16xf32>
        {mhlo.sharding = "{devices=[2,1,1,1,4]<=[8] last_tile_dim_replicate}"})
    -> (tensor<3x3x4x16xf32> {mhlo.sharding = "{replicated}"}) {
  // CHECK: %[[PARTS:.*]] = sdy.manual_computation(%arg0, %arg1)
  // CHECK-SAME: out_shardings=[<@mesh, [{"dp"}, {}, {}, {}, {}]>]
  // CHECK: %[[PART:.*]] = stablehlo.convolution
  // CHECK-SAME: batch_group_count = 4
  // CHECK-SAME: (tensor<4x16x16x16xf32>, tensor<4x16x16x16xf32>) -> tensor<3x3x4x16xf32>
  // CHECK-NEXT: stablehlo.reshape %[[PART]] : (tensor<3x3x4x16xf32>) -> tensor<1x3x3x4x16xf32>
  // CHECK: %[[SUM:.*]] = stablehlo.reduce(%[[PARTS]] init: %{{.*}}) applies stablehlo.add across dimensions = [0]
  // CHECK: sdy.sharding_constraint %[[SUM]] <@mesh, [{}, {}, {}, {}]>
  %y = stablehlo.convolution(%x, %g) dim_numbers = [f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f],
      window = {stride = [1, 1], pad = [[1, 1], [1, 1]]} {
      batch_group_count = 4 : i64, feature_group_count = 1 : i64,
      mhlo.sharding = "{replicated}",
      autoshard.strategy = "[{dp}, {}, {}, {}], [{dp}, {}, {}, {}] -> [{}, {}, {}, {}]"}
      : (tensor<8x16x16x16xf32>, tensor<8x16x16x16xf32>) -> tensor<3x3x4x16xf32>
  return %y : tensor<3x3x4x16xf32>
}

}
