// RUN: autoshard-opt --autoshard-print-costs='cluster=cpu:2 width=240' %s 2>&1 >%t.mlir | filecheck %s

// The sum over the input features, which are cut by tp, is scattered along the rows, which no
// factor of the op cuts: padding makes 2 rows of one. The strategy is one of the op all the same.
// CHECK: communication
// CHECK:   reduce-scatter{{ +}}tp{{ +}}result 0 of convolution
module attributes {autoshard.mesh = "tp=2"} {
func.func public @main(
    %x: tensor<8x1x3x64xf32> {mhlo.sharding = "{devices=[1,1,1,2]<=[2]}"},
    %w: tensor<2x2x64x32xf32> {mhlo.sharding = "{devices=[1,1,2,1]<=[2]}"})
    -> (tensor<8x2x2x32xf32> {mhlo.sharding = "{devices=[1,2,1,1]<=[2]}"}) {
  %y = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {pad = [[1, 1], [0, 0]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64,
        autoshard.strategy = "[{}, {}, {}, {tp}], [{}, {}, {tp}, {}] -> [{}, {tp}, {}, {}]",
        mhlo.sharding = "{devices=[1,2,1,1]<=[2]}"}
      : (tensor<8x1x3x64xf32>, tensor<2x2x64x32xf32>) -> tensor<8x2x2x32xf32>
  return %y : tensor<8x2x2x32xf32>
}
}
