// RUN: autoshard-opt %S/Inputs/portable.mlirbc | filecheck %s

// The portable artifact that jax.export writes is turned back to StableHLO.
// CHECK:  func.func public @main(%arg0: tensor<4xf32>) -> (tensor<4xf32> {jax.result_info = "result"})
// CHECK:    stablehlo.sine %arg0 : tensor<4xf32>
// CHECK:    stablehlo.add
