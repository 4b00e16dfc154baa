// RUN: autoshard-opt --sdy-propagation-pipeline --sdy-convert-global-to-local %s | filecheck %s
// RUN: autoshard-opt --sdy-propagation-pipeline --sdy-convert-global-to-local --mlir-print-debuginfo %s | filecheck %s --check-prefix=PLACE

// A pass that may kill its process runs in one of its own; module attributes, symbols and
// locations come back.
// CHECK:       module @step attributes {autoshard.mesh = "dp=2"
module @step attributes {autoshard.mesh = "dp=2"} {
  sdy.mesh @mesh = <["dp"=2]>

  // CHECK:       func.func @main(%arg0: tensor<2xf32>
  func.func @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}]>}) -> tensor<4xf32> {
    // CHECK:       stablehlo.add %arg0, %arg0
    // CHECK-SAME:    : tensor<2xf32>
    // PLACE:         loc("model.py":7:3)
    %0 = stablehlo.add %x, %x : tensor<4xf32> loc("model.py":7:3)
    return %0 : tensor<4xf32>
  }
}
