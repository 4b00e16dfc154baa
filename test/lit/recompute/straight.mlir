// RUN: autoshard-opt --autoshard-recursive-programming='cluster=cpu:2 mesh=data=2' --autoshard-recompute='memory-limit=40MiB' %s | filecheck %s
// RUN: autoshard-opt --autoshard-recursive-programming='cluster=cpu:2 mesh=data=2' --autoshard-recompute='memory-limit=50MiB' %s | filecheck %s --check-prefix=FITS

// %a waits while the large %z lives. With too little memory for both it is computed again, behind
// a barrier that takes what it is made of and what is there only late. The call is inlined.
// CHECK-LABEL: func.func public @main
// CHECK:       stablehlo.dot_general %arg0, %arg1
// CHECK-NOT:   optimization_barrier
// CHECK:       [[T:%[0-9]+]] = stablehlo.dot_general %1, %1,
// CHECK:       [[B:%[0-9]+]]:3 = stablehlo.optimization_barrier {{.*}} %arg0, %arg1, [[T]]
// CHECK-NEXT:  [[A:%[0-9]+]] = stablehlo.dot_general [[B]]#0, [[B]]#1
// CHECK-SAME:  autoshard.strategy
// CHECK-NEXT:  stablehlo.dot_general [[B]]#2, [[A]]

// Nothing is done to a step that fits.
// FITS-NOT:    optimization_barrier
func.func public @main(%x: tensor<2048x64xf32>, %w: tensor<64x512xf32>, %u: tensor<512x2048xf32>)
    -> tensor<2048x512xf32> {
  %a = call @first(%x, %w) : (tensor<2048x64xf32>, tensor<64x512xf32>) -> tensor<2048x512xf32>
  %z = stablehlo.dot_general %a, %u, contracting_dims = [1] x [0]
      : (tensor<2048x512xf32>, tensor<512x2048xf32>) -> tensor<2048x2048xf32>
  %t = stablehlo.dot_general %z, %z, contracting_dims = [1] x [1]
      : (tensor<2048x2048xf32>, tensor<2048x2048xf32>) -> tensor<2048x2048xf32>
  %r = stablehlo.dot_general %t, %a, contracting_dims = [1] x [0]
      : (tensor<2048x2048xf32>, tensor<2048x512xf32>) -> tensor<2048x512xf32>
  return %r : tensor<2048x512xf32>
}

func.func private @first(%x: tensor<2048x64xf32>, %w: tensor<64x512xf32>) -> tensor<2048x512xf32> {
  %a = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<2048x64xf32>, tensor<64x512xf32>) -> tensor<2048x512xf32>
  return %a : tensor<2048x512xf32>
}
