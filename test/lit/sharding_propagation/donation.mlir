// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation %s | filecheck %s

// A donated argument and the result in its place are one choice: the update comes back as it went in.
// CHECK:       autoshard.resharded_bytes = 3.584000e+03
// CHECK-LABEL: func.func @main
// CHECK-SAME:    %arg0: tensor<64x128xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}", tf.aliasing_output = 0 : i32}
// CHECK-SAME:    -> (tensor<64x128xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"})
func.func @main(%w: tensor<64x128xf32> {tf.aliasing_output = 0 : i32},
    %g: tensor<64x128xf32> {mhlo.sharding = "{devices=[1,8]<=[8]}"}) -> tensor<64x128xf32> {
  // CHECK:      stablehlo.tanh
  // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}] -> [{dp, tp}, {}]"
  %0 = stablehlo.tanh %w {autoshard.in_strategy = ["[{dp, tp}, {}]"]} : tensor<64x128xf32>
  // Whether %g moves before the add or its result after it is one price.
  %1 = stablehlo.add %g, %g : tensor<64x128xf32>
  return %1 : tensor<64x128xf32>
}
