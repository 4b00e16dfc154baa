// RUN: autoshard-opt --autoshard-undo-checkpoints %s | filecheck %s

// The tanh behind the barrier is the one before it: it is computed once, and the barrier is gone.
// CHECK-LABEL: func.func public @main
// CHECK:       %[[H:.*]] = stablehlo.tanh
// CHECK-NOT:   stablehlo.tanh
// CHECK-NOT:   stablehlo.optimization_barrier
// CHECK:       stablehlo.multiply %arg1, %[[H]]
// Behind the user's own barrier nothing is computed twice: it stays.
// CHECK:       %[[S:.*]] = stablehlo.optimization_barrier %arg1
// CHECK:       stablehlo.cosine %[[S]]
func.func public @main(%x: tensor<4x8xf32>, %dy: tensor<4x8xf32>)
    -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>) {
  %h = call @layer(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %b:2 = stablehlo.optimization_barrier %x, %dy : tensor<4x8xf32>, tensor<4x8xf32>
  %h2 = stablehlo.tanh %b#0 : tensor<4x8xf32>
  %g = stablehlo.multiply %b#1, %h2 : tensor<4x8xf32>
  %s = stablehlo.optimization_barrier %dy : tensor<4x8xf32>
  %c = stablehlo.cosine %s : tensor<4x8xf32>
  return %h, %g, %c : tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>
}

func.func private @layer(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %0 = stablehlo.tanh %x : tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}
