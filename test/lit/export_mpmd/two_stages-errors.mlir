// RUN: not autoshard-opt --autoshard-export-mpmd=cluster=cpu:4 --split-input-file %s 2>&1 | filecheck %s

// No op is on a stage.
// CHECK: two_stages-errors.mlir:[[# @LINE + 1]]:1: error: the module has no autoshard.pipeline_stages: its ops are on no stages. Run autoshard-pipeline-stages before.
module attributes {autoshard.mesh = "dp=2"} {
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    return %x : tensor<4xf32>
  }
}

// -----

// Stages, and no plan of what is split inside of them.
// CHECK: two_stages-errors.mlir:[[# @LINE + 1]]:1: error: the module has no autoshard.mesh: nothing has been planned. Run autoshard-recursive-programming before.
module attributes {autoshard.pipeline_stages = 2 : i32} {
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    return %x : tensor<4xf32>
  }
}

// -----

// Stages on which the devices do not fall equally.
// CHECK: error: stages=3: the 4 devices of cluster cpu:4 (4) do not fall on 3 stages equally, the slowest dim first. Give one of 2, 4 stages.
module attributes {autoshard.mesh = "dp=2", autoshard.pipeline_stages = 3 : i32} {
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    return %x : tensor<4xf32>
  }
}
