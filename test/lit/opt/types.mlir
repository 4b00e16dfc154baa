// RUN: autoshard-opt %s | filecheck %s
// RUN: autoshard-opt --emit=bytecode %s | autoshard-opt | filecheck %s

// Every element type that JAX has is read, rank 0 and tokens as well.
// CHECK-LABEL: func.func @element_types
// CHECK-SAME:  tensor<4xi1>, %arg1: tensor<4xi4>, %arg2: tensor<4xui2>
// CHECK-SAME:  tensor<4xf8E4M3FN>, %arg4: tensor<4xf8E5M2>, %arg5: tensor<4xf4E2M1FN>
// CHECK-SAME:  tensor<bf16>, %arg7: tensor<complex<f32>>, %arg8: !stablehlo.token
func.func @element_types(
    %a: tensor<4xi1>, %b: tensor<4xi4>, %c: tensor<4xui2>,
    %d: tensor<4xf8E4M3FN>, %e: tensor<4xf8E5M2>, %f: tensor<4xf4E2M1FN>,
    %g: tensor<bf16>, %h: tensor<complex<f32>>, %i: !stablehlo.token) {
  return
}
