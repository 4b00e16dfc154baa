// RUN: autoshard-opt --autoshard-refine='cluster=cpu:2 compiles=1' %s | filecheck %s

// The plan that was compiled, and fits, stands on the module as any other plan.
// CHECK: module @step attributes {autoshard.mesh = "cpu=2", autoshard.plan =
// CHECK: func.func public @main(%arg0: tensor<256x1024xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"
module @step {
  func.func public @main(%x: tensor<256x1024xf32>) -> tensor<256x1024xf32> {
    %y = stablehlo.tanh %x : tensor<256x1024xf32>
    return %y : tensor<256x1024xf32>
  }
}
