// RUN: autoshard-opt --autoshard-plan='cluster=v5e:2x2 mesh=data=4' %s | filecheck %s
// RUN: autoshard-opt --autoshard-plan='cluster=v5e:2x2 mesh=data=4 optimizer-parallel=1' %s | filecheck %s --check-prefix=SPREAD

// One pass does what autoshard.plan does: it searches, and spreads what the plan leaves on every device.
// A mesh and a pin leave the weight whole; its momentum is spread nevertheless.
// CHECK: func.func public @main(%arg0: tensor<1024x1024xf32> {autoshard.pin = "[{}, {}]", mhlo.sharding = "{replicated}"
// CHECK-SAME: %arg1: tensor<1024x1024xf32> {mhlo.sharding = "{replicated}"
// SPREAD: func.func public @main(%arg0: tensor<1024x1024xf32> {autoshard.pin = "[{}, {}]", mhlo.sharding = "{replicated}"
// SPREAD-SAME: %arg1: tensor<1024x1024xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"
func.func public @main(
    %w: tensor<1024x1024xf32> {mhlo.sharding = "{replicated}", tf.aliasing_output = 0 : i32},
    %m: tensor<1024x1024xf32> {tf.aliasing_output = 1 : i32},
    %x: tensor<256x1024xf32>) -> (tensor<1024x1024xf32>, tensor<1024x1024xf32>) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<256x1024xf32>, tensor<1024x1024xf32>) -> tensor<256x1024xf32>
  %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0]
      : (tensor<256x1024xf32>, tensor<256x1024xf32>) -> tensor<1024x1024xf32>
  %n = stablehlo.add %m, %g : tensor<1024x1024xf32>
  %u = stablehlo.subtract %w, %n : tensor<1024x1024xf32>
  return %u, %n : tensor<1024x1024xf32>, tensor<1024x1024xf32>
}
