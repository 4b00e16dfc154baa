// RUN: autoshard-opt --autoshard-import-strategies %s | filecheck %s

sdy.mesh @mesh = <["dp"=2, "tp"=4]>

// A manual computation keeps its body; its in and out shardings are pins, operands first.
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<8x16xf32>, %y: tensor<16xf32>) -> tensor<8x16xf32> {
  // CHECK:      sdy.manual_computation
  // CHECK:      stablehlo.add {{.*}} : tensor<4x16xf32>
  // CHECK:      autoshard.pin = ["[{dp}, {}]", "[{}]", "[{dp}, {}]"]
  %0 = sdy.manual_computation(%x, %y)
      in_shardings=[<@mesh, [{"dp"}, {}]>, <@mesh, [{}]>] out_shardings=[<@mesh, [{"dp"}, {}]>]
      manual_axes={"dp"} (%a: tensor<4x16xf32>, %b: tensor<16xf32>) {
    %c = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<16xf32>) -> tensor<4x16xf32>
    %d = stablehlo.add %a, %c : tensor<4x16xf32>
    sdy.return %d : tensor<4x16xf32>
  } : (tensor<8x16xf32>, tensor<16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
