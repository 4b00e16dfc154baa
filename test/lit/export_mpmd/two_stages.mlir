// RUN: autoshard-opt --autoshard-import-strategies --autoshard-sharding-propagation --autoshard-export-mpmd=cluster=cpu:4 %s | filecheck %s
// RUN: autoshard-opt --autoshard-import-strategies --autoshard-sharding-propagation --autoshard-export-mpmd='cluster=cpu:4 form=fragments' %s | autoshard-opt | filecheck --check-prefix=FRAGMENTS %s
// RUN: autoshard-opt --autoshard-import-strategies --autoshard-sharding-propagation --autoshard-export-mpmd='cluster=cpu:4 schedule=zero_bubble' %s | filecheck --check-prefix=SPLIT %s

// Two layers on two stages, of which each is a mesh. Arguments and results lie where their stages
// are, split as planned.
// CHECK-LABEL: func.func public @main
// CHECK-SAME:  %arg0: !mpmd.mesh_tensor<"stage0", tensor<2x2x4xf32>, sharding=<@mesh, [{}, {}, {}]>>
// CHECK-SAME:  %arg1: !mpmd.mesh_tensor<"stage0", tensor<4x4xf32>, sharding=<@mesh, [{}, {"dp"}]>>
// CHECK-SAME:  %arg2: !mpmd.mesh_tensor<"stage1", tensor<4x4xf32>, sharding=<@mesh, [{"dp"}, {}]>>
// CHECK-SAME:  topology = #mpmd.topology<<"stage0" : <["dp"=2]>>, <"stage1" : <["dp"=2]>>>
// The numbers of micro-batches, where a task reads them.
// CHECK-NEXT:  %[[N:.*]]:2 = mpmd.fragment_call<mesh="stage0", origin=["micro_batch_numbers"]> @micro_batch_numbers()
// CHECK:       %[[F0:.*]]:2 = mpmd.fragment_call<mesh="stage0", origin=["stage0_loop0"]> @stage0_loop0(%arg0, %[[N]]#0, %arg1) {call_counter = 0 : ui32, stage_id = 0 : i64}
// Stage 0 is one micro-batch ahead. What it sends of the first one is sent before the second one is.
// CHECK-NEXT:  %[[F1:.*]]:2 = mpmd.fragment_call<mesh="stage0", origin=["stage0_loop0"]> @stage0_loop0(%arg0, %[[N]]#1, %arg1) {call_counter = 1 : ui32, stage_id = 0 : i64}
// CHECK-NEXT:  %[[T0:.*]] = mpmd.transfer %[[F0]]#0 : (!mpmd.mesh_tensor<"stage0", tensor<2x4xf32>, sharding=<@mesh, [{}, {"dp"}]>>) -> !mpmd.mesh_tensor<"stage1", tensor<2x4xf32>, sharding=<@mesh, [{}, {"dp"}]>>
// CHECK-NEXT:  %[[FB0:.*]]:2 = mpmd.fragment_call<mesh="stage1", origin=["stage1_loop1", "stage1_loop1"(1)]> @stage1_loop1(%[[T0]], %arg2, %{{.*}}) {call_counter = 0 : ui32, stage_id = 1 : i64}
// CHECK-NEXT:  %[[T1:.*]] = mpmd.transfer %[[F1]]#0
// CHECK-NEXT:  %[[FB1:.*]]:2 = mpmd.fragment_call<{{.*}}> @stage1_loop1(%[[T1]], %arg2, %[[FB0]]#1) {call_counter = 1 : ui32, stage_id = 1 : i64}
// CHECK-NEXT:  %[[G0:.*]] = mpmd.transfer %[[FB0]]#0
// CHECK-NEXT:  %[[B0:.*]] = mpmd.fragment_call<mesh="stage0", origin=["stage0_loop2"(1)]> @stage0_loop2(%[[F0]]#1, %[[G0]], %{{.*}}) {call_counter = 0 : ui32, stage_id = 0 : i64}
// CHECK:       %[[B1:.*]] = mpmd.fragment_call<mesh="stage0", origin=["stage0_loop2"(1)]> @stage0_loop2(%[[F1]]#1, %{{.*}}, %[[B0]]) {call_counter = 1 : ui32, stage_id = 0 : i64}
// CHECK:       %[[W0:.*]] = mpmd.fragment_call<mesh="stage0", origin=["stage0_after0"]> @stage0_after0(%arg1, %[[B1]]) {stage_id = 0 : i64}
// CHECK:       %[[W1:.*]] = mpmd.fragment_call<mesh="stage1", origin=["stage1_after0"]> @{{.*}}(%arg2, %[[FB1]]#1) {stage_id = 1 : i64}
// CHECK:       return %[[W0]], %[[W1]]
// A sum gives its memory to the next one.
// CHECK:       func.func private @stage0_loop2({{.*}}, %arg2: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"dp"}]>, tf.aliasing_output = 0 : i32})
// CHECK-SAME:  attributes {mesh_shape = #sdy.mesh<["dp"=2]>, reserved_hbm_bytes = {{[0-9]+}} : i64}

// With their ops in place; the text is read again.
// FRAGMENTS:   %[[N:.*]]:2 = mpmd.fragment<mesh="stage0", origin=["micro_batch_numbers"], stage=0> () () {
// FRAGMENTS:   mpmd.fragment<mesh="stage0", origin=["stage0_loop0"], stage=0> (%arg0, %[[N]]#1, %arg1) {call_counter = 1 : ui32} (%{{.*}}: tensor<2x2x4xf32>, %{{.*}}: tensor<i32>, %[[V:.*]]: tensor<4x4xf32>) {
// FRAGMENTS:   stablehlo.dot_general %{{.*}}, %[[V]]
// FRAGMENTS:   mpmd.return %{{.*}}, %{{.*}} : tensor<2x4xf32>, tensor<2x4xf32>
// FRAGMENTS-NOT: func.func

// The gradient of the weights apart: what stage 0 waits for, and the rest.
// SPLIT:       mpmd.fragment_call<mesh="stage1", origin=["stage1_loop1", "stage1_loop1"(1)]> @stage1_loop1({{.*}}) {call_counter = 0 : ui32, split_keep_transferred, stage_id = 1 : i64}
// SPLIT:       mpmd.fragment_call<mesh="stage1", origin=["stage1_loop1_deferred"(1)]> @stage1_loop1_deferred({{.*}}) {call_counter = 1 : ui32, split_drop_transferred, stage_id = 1 : i64}
module attributes {autoshard.pipeline_stages = 2 : i32, autoshard.micro_batches = "{\22count\22: 2, \22whole\22: [], \22each\22: []}"} {
  sdy.mesh @mesh = <["dp"=2]>
  func.func public @main(%x: tensor<2x2x4xf32>, %w0: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"dp"}]>}, %w1: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>})
      -> (tensor<4x4xf32> {autoshard.feeds_argument = 1 : i64}, tensor<4x4xf32> {autoshard.feeds_argument = 2 : i64}) {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %empty = stablehlo.constant dense<0.0> : tensor<4x4xf32>
    %l:6 = stablehlo.while(%m = %zero, %xs = %x, %v0 = %w0, %v1 = %w1, %s1 = %empty, %s0 = %empty)
        : tensor<i32>, tensor<2x2x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
        attributes {autoshard.micro_batches}
    cond {
      %two = stablehlo.constant dense<2> : tensor<i32>
      %go = stablehlo.compare LT, %m, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %first = stablehlo.constant dense<0> : tensor<i32>
      %part = stablehlo.dynamic_slice %xs, %first, %m, %first, sizes = [2, 1, 4] {autoshard.stage = 0 : i32, autoshard.level = 0 : i32}
          : (tensor<2x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x1x4xf32>
      %xm = stablehlo.reshape %part {autoshard.stage = 0 : i32, autoshard.level = 0 : i32} : (tensor<2x1x4xf32>) -> tensor<2x4xf32>
      %h = stablehlo.dot_general %xm, %v0, contracting_dims = [1] x [0] {autoshard.stage = 0 : i32, autoshard.level = 0 : i32}
          : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %ones = stablehlo.constant dense<1.0> : tensor<2x4xf32>
      %h1 = stablehlo.add %h, %ones {autoshard.stage = 1 : i32, autoshard.level = 1 : i32} : tensor<2x4xf32>
      %y = stablehlo.dot_general %h, %v1, contracting_dims = [1] x [0] {autoshard.stage = 1 : i32, autoshard.level = 1 : i32}
          : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %y1 = stablehlo.add %y, %ones {autoshard.stage = 1 : i32, autoshard.level = 1 : i32} : tensor<2x4xf32>
      %g1 = stablehlo.dot_general %h1, %y1, contracting_dims = [0] x [0] {autoshard.stage = 1 : i32, autoshard.level = 1 : i32}
          : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<4x4xf32>
      %gh = stablehlo.dot_general %y1, %v1, contracting_dims = [1] x [1] {autoshard.stage = 1 : i32, autoshard.level = 1 : i32}
          : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %n1 = stablehlo.add %s1, %g1 {autoshard.stage = 1 : i32, autoshard.level = 1 : i32} : tensor<4x4xf32>
      %g0 = stablehlo.dot_general %xm, %gh, contracting_dims = [0] x [0] {autoshard.stage = 0 : i32, autoshard.level = 2 : i32}
          : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<4x4xf32>
      %n0 = stablehlo.add %s0, %g0 {autoshard.stage = 0 : i32, autoshard.level = 2 : i32} : tensor<4x4xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %n = stablehlo.add %m, %one : tensor<i32>
      stablehlo.return %n, %xs, %v0, %v1, %n1, %n0 : tensor<i32>, tensor<2x2x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
    }
    %u0 = stablehlo.subtract %w0, %l#5 {autoshard.stage = 0 : i32, autoshard.level = 0 : i32} : tensor<4x4xf32>
    %u1 = stablehlo.subtract %w1, %l#4 {autoshard.stage = 1 : i32, autoshard.level = 0 : i32} : tensor<4x4xf32>
    return %u0, %u1 : tensor<4x4xf32>, tensor<4x4xf32>
  }
}
