// RUN: autoshard-opt --autoshard-recursive-programming='cluster=cpu:2 mesh=data=2' --autoshard-recompute='choose=marks host-offload=true memory-limit=40MiB' %s | filecheck %s
// RUN: autoshard-opt --autoshard-recursive-programming='cluster=cpu:2 mesh=data=2' --autoshard-recompute='choose=marks memory-limit=40MiB' %s | filecheck %s --check-prefix=OFF

// %a waits while the square of the large %z is made. With too little memory for both it waits on the
// host, and comes back behind a barrier that takes what is there only late.
// CHECK-LABEL: func.func public @main
// CHECK:       [[A:%[0-9]+]] = stablehlo.dot_general %arg0, %arg1
// CHECK:       [[H:%[0-9]+]] = stablehlo.custom_call @annotate_device_placement([[A]])
// CHECK-SAME:  autoshard.strategy = "[{data}, {}] -> [{data}, {}]"
// CHECK-SAME:  _xla_buffer_placement = "pinned_host"
// CHECK:       [[B:%[0-9]+]]:2 = stablehlo.optimization_barrier {{.*}} [[H]], %1
// CHECK:       [[D:%[0-9]+]] = stablehlo.custom_call @annotate_device_placement([[B]]#0)
// CHECK-SAME:  _xla_buffer_placement = "device"
// CHECK:       [[T:%[0-9]+]] = stablehlo.dot_general [[B]]#1, [[B]]#1
// CHECK:       stablehlo.dot_general [[T]], [[D]]

// It is the option that allows it.
// OFF-NOT:     annotate_device_placement
func.func public @main(%x: tensor<2048x64xf32>, %w: tensor<64x512xf32>, %u: tensor<512x2048xf32>)
    -> tensor<2048x512xf32> {
  %a = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<2048x64xf32>, tensor<64x512xf32>) -> tensor<2048x512xf32>
  %z = stablehlo.dot_general %a, %u, contracting_dims = [1] x [0]
      : (tensor<2048x512xf32>, tensor<512x2048xf32>) -> tensor<2048x2048xf32>
  %t = stablehlo.dot_general %z, %z, contracting_dims = [1] x [1]
      : (tensor<2048x2048xf32>, tensor<2048x2048xf32>) -> tensor<2048x2048xf32>
  %r = stablehlo.dot_general %t, %a, contracting_dims = [1] x [0]
      : (tensor<2048x2048xf32>, tensor<2048x512xf32>) -> tensor<2048x512xf32>
  return %r : tensor<2048x512xf32>
}
