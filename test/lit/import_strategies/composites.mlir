// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies %s | filecheck %s

// A composite without a rule of the user is what it is made of: a call of its decomposition.
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<8x16xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"})
    -> (tensor<8x16xf32>, tensor<8x16xf32>) {
  // CHECK:      call @[[FIRST:.*]](%arg0) {{.*}}: (tensor<8x16xf32>) -> tensor<8x16xf32>
  %0 = stablehlo.composite "mine.square" %x {decomposition = @square} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  // CHECK:      call @[[SECOND:.*]](%arg0)
  // CHECK-NOT:  stablehlo.composite
  %1 = stablehlo.composite "mine.square" %x {decomposition = @square} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %0, %1 : tensor<8x16xf32>, tensor<8x16xf32>
}

// Both calls have a function of their own, so that each can be planned alone.
// CHECK-COUNT-2: func.func private
func.func private @square(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.multiply %x, %x : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
