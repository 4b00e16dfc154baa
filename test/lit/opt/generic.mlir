// RUN: autoshard-opt --emit=generic %s | filecheck %s
// RUN: autoshard-opt --emit=generic %s | autoshard-opt | filecheck %s --check-prefix=PRETTY

// The generic form names every op and region in full, and is read back.
// CHECK:        "builtin.module"() ({
// CHECK-NEXT:     "func.func"()
// CHECK-SAME:       sym_name = "main"
// CHECK:            "stablehlo.add"(%arg0, %arg0) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// PRETTY:       func.func @main(%arg0: tensor<4xf32>) -> tensor<4xf32>
// PRETTY:         stablehlo.add %arg0, %arg0 : tensor<4xf32>
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
