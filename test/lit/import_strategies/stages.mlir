// RUN: autoshard-opt --autoshard-import-strategies %s | filecheck %s

sdy.mesh @mesh = <["dp"=2]>

// A mark of a pipeline's stage that no pass has read says nothing.
// CHECK-LABEL: func.func public @main
// CHECK-NOT:   custom_call
// CHECK:       stablehlo.tanh %arg0
func.func public @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %m = stablehlo.custom_call @autoshard.pipeline_stage(%x) {autoshard.stage = 1 : i32}
      : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %y = stablehlo.tanh %m : tensor<8x4xf32>
  return %y : tensor<8x4xf32>
}
