// RUN: autoshard-opt --autoshard-recursive-programming='cluster=v5e:2x4' %s | filecheck %s
// RUN: autoshard-opt --autoshard-recursive-programming='cluster=v5e:2x4' --autoshard-export-shardy %s | filecheck %s --check-prefix=SHARDY
// RUN: autoshard-opt --autoshard-recursive-programming='cluster=v5e:2x4' --autoshard-export-gspmd %s | filecheck %s --check-prefix=GSPMD

// A cluster is all it takes: the mesh is made of its axes and named after what they cut, every value
// gets a sharding, every op with a rule a strategy, and the module says what the plan costs. With a
// batch of 65536 and small weights that are trained, all devices share the batch.
// CHECK:      module attributes {autoshard.mesh = "{{(data|fsdp)=[^"]*}}", autoshard.plan = "{\22step_seconds\22: {{[0-9.e-]+}},
// CHECK-SAME:   \22cluster\22: \22v5e:2x4\22
// CHECK-LABEL: func.func public @main
// CHECK-SAME:    %arg1: tensor<65536x512xf32> {mhlo.sharding = "{devices=[8,1]<={{.*}}}"}
// CHECK:         stablehlo.dot_general
// CHECK-SAME:      autoshard.strategy = "[{{.*}}, {}], [{}, {}] -> [{{.*}}, {}]", mhlo.sharding = "{devices=[8,1]<={{.*}}}"
// CHECK:         stablehlo.tanh
// CHECK-SAME:      mhlo.sharding = "{devices=[8,1]<={{.*}}}"
// SHARDY:      sdy.mesh @mesh = <["{{data|fsdp}}"=
// SHARDY:      sdy.sharding_constraint
// GSPMD:       mhlo.num_partitions = 8
// GSPMD:       stablehlo.custom_call @Sharding
func.func public @main(%w: tensor<512x512xf32> {tf.aliasing_output = 1 : i32}, %x: tensor<65536x512xf32>)
    -> (tensor<65536x512xf32>, tensor<512x512xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<65536x512xf32>, tensor<512x512xf32>) -> tensor<65536x512xf32>
  %1 = stablehlo.tanh %0 : tensor<65536x512xf32>
  %2 = stablehlo.dot_general %x, %1, contracting_dims = [0] x [0] : (tensor<65536x512xf32>, tensor<65536x512xf32>) -> tensor<512x512xf32>
  %3 = stablehlo.subtract %w, %2 : tensor<512x512xf32>
  return %1, %3 : tensor<65536x512xf32>, tensor<512x512xf32>
}
