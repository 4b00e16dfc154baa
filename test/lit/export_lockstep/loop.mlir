// RUN: autoshard-opt --autoshard-lockstep='stages=2 micro-batches=4 batch=x' --autoshard-recursive-programming='cluster=cpu:2 mesh=model=2' --autoshard-export-lockstep %s | filecheck %s

// The plan of two devices becomes that of two stages of two devices each. Between stages, the
// devices that have the same place in theirs send to each other: of what they gather and exchange
// their own blocks, which the partitioner would make whole first.
// CHECK:       mhlo.num_partitions = 4 : i32
// CHECK:       sdy.mesh @mesh = <["stage"=2, "model"=2]>
// CHECK-LABEL: func.func public @main(
// CHECK-SAME:  tensor<4x4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"stage"},
// CHECK:       %[[numbers:.*]] = stablehlo.iota dim = 0 : tensor<2xi32>
// CHECK:       sdy.manual_computation(%[[numbers]],
// CHECK-SAME:  manual_axes={"stage"}
// CHECK-SAME:  tensor<2x4x4xf32>) {
// CHECK:         sdy.manual_computation
// CHECK-SAME:    manual_axes={"model"}
// CHECK-NEXT:      "stablehlo.all_gather"
// CHECK-SAME:      replica_groups = dense<{{\[\[}}0, 2], [1, 3]]>
// CHECK-SAME:      (tensor<2x1024x4xf32>) -> tensor<4x1024x4xf32>
// CHECK:         "stablehlo.collective_permute"
// CHECK-SAME:    source_target_pairs = dense<{{\[\[}}0, 2], [1, 3]]>
// CHECK:         sdy.manual_computation
// CHECK-SAME:    manual_axes={"model"}
// CHECK-NEXT:      "stablehlo.all_to_all"
// CHECK-SAME:      replica_groups = dense<{{\[\[}}0, 2], [1, 3]]>
// CHECK:         "stablehlo.all_reduce"
// CHECK:           stablehlo.add
// CHECK-NOT:   autoshard.
func.func public @main(%x: tensor<8192x4xf32> loc("x"), %a: tensor<4x4xf32> loc("a"), %w: tensor<4x4x4xf32> loc("w"))
    -> (tensor<f32>, tensor<f32>) {
  %first = stablehlo.dot_general %x, %a, contracting_dims = [1] x [0]
      : (tensor<8192x4xf32>, tensor<4x4xf32>) -> tensor<8192x4xf32>
  %start = stablehlo.constant dense<0> : tensor<i32>
  %f:3 = stablehlo.while(%n = %start, %h = %first, %v = %w) : tensor<i32>, tensor<8192x4xf32>, tensor<4x4x4xf32>
  cond {
    %trips = stablehlo.constant dense<4> : tensor<i32>
    %more = stablehlo.compare LT, %n, %trips : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %z = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %row = stablehlo.dynamic_slice %v, %n, %z, %z, sizes = [1, 4, 4]
        : (tensor<4x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    %own = stablehlo.reshape %row : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %y = stablehlo.dot_general %h, %own, contracting_dims = [1] x [0]
        : (tensor<8192x4xf32>, tensor<4x4xf32>) -> tensor<8192x4xf32>
    %next = stablehlo.add %n, %one : tensor<i32>
    stablehlo.return %next, %y, %v : tensor<i32>, tensor<8192x4xf32>, tensor<4x4x4xf32>
  }
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %l = stablehlo.reduce(%f#1 init: %zero) applies stablehlo.add across dimensions = [0, 1]
      : (tensor<8192x4xf32>, tensor<f32>) -> tensor<f32>
  %s = stablehlo.reduce(%w init: %zero) applies stablehlo.add across dimensions = [0, 1, 2]
      : (tensor<4x4x4xf32>, tensor<f32>) -> tensor<f32>
  return %l, %s : tensor<f32>, tensor<f32>
}
