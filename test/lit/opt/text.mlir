// RUN: autoshard-opt %s | filecheck %s
// RUN: autoshard-opt %s | autoshard-opt | filecheck %s
// RUN: autoshard-opt - < %s | filecheck %s

// Without passes the module comes out as it went in, from a file and from standard input.
// CHECK:       module @step attributes {mhlo.num_partitions = 8 : i32}
module @step attributes {mhlo.num_partitions = 8 : i32} {
  // CHECK:       func.func public @main(%arg0: tensor<8x4xf32> {mhlo.sharding = "{replicated}"})
  // CHECK-SAME:      -> (tensor<8x4xf32> {jax.result_info = "result"})
  func.func public @main(%x: tensor<8x4xf32> {mhlo.sharding = "{replicated}"})
      -> (tensor<8x4xf32> {jax.result_info = "result"}) {
    // CHECK-NEXT:  %0 = stablehlo.tanh %arg0 : tensor<8x4xf32>
    %0 = stablehlo.tanh %x : tensor<8x4xf32>
    // CHECK-NEXT:  return %0 : tensor<8x4xf32>
    return %0 : tensor<8x4xf32>
  }
}
