// RUN: not autoshard-opt --autoshard-split-stages %s 2>&1 | filecheck %s

// A stage that the pipeline does not have.
// CHECK: model.py:7:3
// CHECK-SAME: stablehlo.dot_general is on stage 2, and there are 2 stages. Label ops with stages 0 to 1.
module attributes {autoshard.pipeline_stages = 2 : i32, autoshard.micro_batches = "{\22count\22: 2, \22whole\22: [], \22each\22: []}"} {
  func.func public @main(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %empty = stablehlo.constant dense<0.0> : tensor<4x4xf32>
    %l:3 = stablehlo.while(%m = %zero, %xs = %x, %sum = %empty)
        : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32> attributes {autoshard.micro_batches}
    cond {
      %two = stablehlo.constant dense<2> : tensor<i32>
      %go = stablehlo.compare LT, %m, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %g = stablehlo.dot_general %xs, %xs, contracting_dims = [1] x [0] {autoshard.stage = 2 : i32, autoshard.level = 0 : i32}
          : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32> loc("model.py":7:3)
      %next = stablehlo.add %sum, %g {autoshard.stage = 0 : i32, autoshard.level = 0 : i32} : tensor<4x4xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %n = stablehlo.add %m, %one : tensor<i32>
      stablehlo.return %n, %xs, %next : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
    }
    return %l#2 : tensor<4x4xf32>
  }
}
