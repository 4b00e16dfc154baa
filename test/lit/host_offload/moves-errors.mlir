// RUN: not autoshard-opt --autoshard-host-offload %s 2>&1 | filecheck %s

// Only arguments and results have a place of their own.
// CHECK: moves-errors.mlir:7:{{.*}}autoshard.in_host_memory marks a value that is neither an argument nor a result of the function that is planned.
func.func public @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.tanh %x : tensor<8x8xf32>
  %1 = stablehlo.custom_call @autoshard.in_host_memory(%0) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = stablehlo.tanh %1 : tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}
