// RUN: autoshard-opt '--autoshard-host-offload=arguments=state' %s | filecheck %s
// RUN: autoshard-opt '--autoshard-host-offload=arguments=state[1]' %s | filecheck %s --check-prefix=ONE

// Arguments are called as JAX calls them; the name of a tree means all arrays in it.
// CHECK-LABEL: func.func public @main
// CHECK-SAME:  %arg0: tensor<64x16xf32>,
// CHECK-SAME:  %arg1: tensor<64x16xf32> {mhlo.memory_kind = "pinned_host"}
// CHECK-SAME:  %arg2: tensor<64x16xf32> {mhlo.memory_kind = "pinned_host"}
// ONE-LABEL:   func.func public @main
// ONE-SAME:    %arg1: tensor<64x16xf32>,
// ONE-SAME:    %arg2: tensor<64x16xf32> {mhlo.memory_kind = "pinned_host"}
func.func public @main(
    %p: tensor<64x16xf32> loc("params"), %m: tensor<64x16xf32> loc("state[0]"),
    %v: tensor<64x16xf32> loc("state[1]")) -> tensor<64x16xf32> {
  %0 = stablehlo.add %m, %v : tensor<64x16xf32>
  %1 = stablehlo.subtract %p, %0 : tensor<64x16xf32>
  return %1 : tensor<64x16xf32>
}
