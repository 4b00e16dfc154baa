// RUN: not autoshard-opt --autoshard-import-strategies --autoshard-sharding-propagation --autoshard-export-mpmd=cluster=cpu:4 --split-input-file %s 2>&1 | filecheck %s

// What the dialect cannot say of a plan: devices of a mesh in another order.
// CHECK: plans-errors.mlir:[[# @LINE + 3]]:3: error: the mesh of a stage is dp=2 device_ids=1,0, and the meshes of a topology have no order of devices.
module attributes {autoshard.pipeline_stages = 2 : i32, autoshard.micro_batches = "{\22count\22: 2, \22whole\22: [], \22each\22: []}"} {
  sdy.mesh @mesh = <["dp"=2], device_ids=[1, 0]>
  func.func public @main(%x: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>}) -> tensor<4x4xf32> {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %empty = stablehlo.constant dense<0.0> : tensor<4x4xf32>
    %l:3 = stablehlo.while(%m = %zero, %xs = %x, %sum = %empty)
        : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32> attributes {autoshard.micro_batches}
    cond {
      %two = stablehlo.constant dense<2> : tensor<i32>
      %go = stablehlo.compare LT, %m, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %h = stablehlo.dot_general %xs, %xs, contracting_dims = [1] x [0] {autoshard.stage = 0 : i32, autoshard.level = 0 : i32}
          : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %y = stablehlo.dot_general %h, %h, contracting_dims = [1] x [0] {autoshard.stage = 1 : i32, autoshard.level = 1 : i32}
          : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %next = stablehlo.add %sum, %y {autoshard.stage = 1 : i32, autoshard.level = 1 : i32} : tensor<4x4xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %n = stablehlo.add %m, %one : tensor<i32>
      stablehlo.return %n, %xs, %next : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
    }
    return %l#2 : tensor<4x4xf32>
  }
}

// -----

// An argument in the memory of the host.
// CHECK: plans-errors.mlir:[[# @LINE + 3]]:3: error: argument 0 has mhlo.memory_kind = "pinned_host", and stages are exported with all arrays on their devices.
module attributes {autoshard.pipeline_stages = 2 : i32, autoshard.micro_batches = "{\22count\22: 2, \22whole\22: [], \22each\22: []}"} {
  sdy.mesh @mesh = <["dp"=2]>
  func.func public @main(%x: tensor<4x4xf32> {mhlo.memory_kind = "pinned_host", sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>}) -> tensor<4x4xf32> {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %empty = stablehlo.constant dense<0.0> : tensor<4x4xf32>
    %l:3 = stablehlo.while(%m = %zero, %xs = %x, %sum = %empty)
        : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32> attributes {autoshard.micro_batches}
    cond {
      %two = stablehlo.constant dense<2> : tensor<i32>
      %go = stablehlo.compare LT, %m, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %h = stablehlo.dot_general %xs, %xs, contracting_dims = [1] x [0] {autoshard.stage = 0 : i32, autoshard.level = 0 : i32}
          : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %y = stablehlo.dot_general %h, %h, contracting_dims = [1] x [0] {autoshard.stage = 1 : i32, autoshard.level = 1 : i32}
          : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %next = stablehlo.add %sum, %y {autoshard.stage = 1 : i32, autoshard.level = 1 : i32} : tensor<4x4xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %n = stablehlo.add %m, %one : tensor<i32>
      stablehlo.return %n, %xs, %next : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
    }
    return %l#2 : tensor<4x4xf32>
  }
}
