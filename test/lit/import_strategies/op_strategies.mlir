// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies %s | filecheck %s

// in_strategy and out_strategy on an op become marks on its operands and results, one a text;
// "None" leaves a value open. Texts are layouts or numbers of blocks.
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<8x16xf32>, %w: tensor<16x8xf32>, %b: tensor<8x8xf32>) -> tensor<8x8xf32> {
  // CHECK:      %[[X:.*]] = stablehlo.custom_call @autoshard.mark(%arg0) {{.*}}autoshard.pin = "[{dp}, {tp}]"{{.*}}autoshard.role = "in"
  // CHECK:      %[[W:.*]] = stablehlo.custom_call @autoshard.mark(%arg1) {{.*}}autoshard.pin = "(4, 1)"{{.*}}autoshard.role = "in"
  // CHECK:      %[[Y:.*]] = stablehlo.dot_general %[[X]], %[[W]]
  // CHECK-NOT:  autoshard.in_strategy
  // CHECK:      %[[OUT:.*]] = stablehlo.custom_call @autoshard.mark(%[[Y]]) {{.*}}autoshard.pin = "[{dp, tp}, {}]"{{.*}}autoshard.role = "out"
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      {autoshard.in_strategy = ["[{dp}, {tp}]", "(4, 1)"], autoshard.out_strategy = ["[{dp, tp}, {}]"]}
      : (tensor<8x16xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
  // CHECK:      %[[B:.*]] = stablehlo.custom_call @autoshard.mark(%arg2)
  // CHECK:      stablehlo.add %[[OUT]], %[[B]]
  %1 = stablehlo.add %0, %b {autoshard.in_strategy = ["None", "(8, 1)"]} : tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}
