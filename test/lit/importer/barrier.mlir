// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation %s | filecheck %s

// An optimization barrier gives every value as it takes it.
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"},
    %y: tensor<64x128xf32> {mhlo.sharding = "{devices=[1,8]<=[8]}"}, %s: tensor<f32>) -> (tensor<64x128xf32>, tensor<64x128xf32>, tensor<f32>) {
  // CHECK:      stablehlo.optimization_barrier
  // CHECK-SAME: {devices=[8,1]<=[8]}, {devices=[1,8]<=[8]}, {replicated}
  %0:3 = stablehlo.optimization_barrier %x, %y, %s : tensor<64x128xf32>, tensor<64x128xf32>, tensor<f32>
  return %0#0, %0#1, %0#2 : tensor<64x128xf32>, tensor<64x128xf32>, tensor<f32>
}
