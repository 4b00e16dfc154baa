// RUN: not autoshard-opt --autoshard-undo-checkpoints --autoshard-recompute='memory-limit=1KiB' %s 2>&1 | filecheck %s

// The second loop goes through half of the trips: it is no pair with the first one, and said so.
// CHECK: model.py:7:4: warning: policy='replace': an op of this jax.checkpoint stays computed again in the backward half
// CHECK: error:{{.*}}plan
func.func public @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %four = stablehlo.constant dense<4> : tensor<i32>
  %f:2 = stablehlo.while(%i = %zero, %c = %x) : tensor<i32>, tensor<8x8xf32>
  cond {
    %go = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %a = stablehlo.dot_general %c, %c, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %n = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %n, %a : tensor<i32>, tensor<8x8xf32>
  }
  %g:2 = stablehlo.while(%i = %zero, %c = %f#1) : tensor<i32>, tensor<8x8xf32>
  cond {
    %go = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %a = stablehlo.dot_general %c, %c, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32> loc("checkpoint/rematted_computation/dot_general"("model.py":7:4))
    %n = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %n, %a : tensor<i32>, tensor<8x8xf32>
  }
  return %g#1 : tensor<8x8xf32>
}
