// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation %s | filecheck %s


sdy.mesh @mesh = <["dp"=2, "tp"=4]>

// The body of a manual computation is left alone; what it takes and gives is as it says.
// CHECK:       autoshard.resharded_bytes = 0.000000e+00
// CHECK-LABEL: func.func @main
// CHECK-SAME:    %arg0: tensor<8x16xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"}
func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  // CHECK:      sdy.manual_computation
  // CHECK-NEXT: stablehlo.tanh %arg1 : tensor<4x16xf32>
  // CHECK:      mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"
  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"dp"}, {}]>] out_shardings=[<@mesh, [{"dp"}, {}]>]
      manual_axes={"dp"} (%a: tensor<4x16xf32>) {
    %b = stablehlo.tanh %a : tensor<4x16xf32>
    sdy.return %b : tensor<4x16xf32>
  } : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
