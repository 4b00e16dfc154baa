// RUN: not autoshard-opt --autoshard-export-gspmd --split-input-file %s 2>&1 | filecheck %s

// A module that nobody has planned.
// CHECK: constraints-errors.mlir:[[# @LINE + 1]]:1: error: the module has no autoshard.mesh: nothing has been planned.
module {
}

// -----

// An op without a sharding: the plan is not complete.
module attributes {autoshard.mesh = "dp=2,tp=4"} {
func.func @op_without_sharding(%x: tensor<16x8xf32> {mhlo.sharding = "{replicated}"})
    -> (tensor<16x8xf32> {mhlo.sharding = "{replicated}"}) {
  // CHECK: constraints-errors.mlir:[[# @LINE + 1]]:8: error: the result of stablehlo.tanh has no mhlo.sharding
  %y = stablehlo.tanh %x : tensor<16x8xf32>
  return %y : tensor<16x8xf32>
}
}

// -----

// An argument without a sharding.
module attributes {autoshard.mesh = "dp=2,tp=4"} {
// CHECK: constraints-errors.mlir:[[# @LINE + 1]]:1: error: argument 0 of @argument_without_sharding has no mhlo.sharding
func.func @argument_without_sharding(%x: tensor<16x8xf32>)
    -> (tensor<16x8xf32> {mhlo.sharding = "{replicated}"}) {
  return %x : tensor<16x8xf32>
}
}

// -----

// A module that was lowered for other devices than the plan has.
// CHECK: constraints-errors.mlir:[[# @LINE + 1]]:1: error: the module was lowered for 4 partitions, the plan's mesh dp=2,tp=4 has 8 devices
module attributes {autoshard.mesh = "dp=2,tp=4", mhlo.num_partitions = 4 : i32} {
}

// -----

// XLA ignores a text that it cannot read; here it is an error.
module attributes {autoshard.mesh = "dp=2,tp=4"} {
func.func @unreadable_text(%x: tensor<16x8xf32> {mhlo.sharding = "{replicated}"})
    -> (tensor<16x8xf32> {mhlo.sharding = "{replicated}"}) {
  // CHECK: constraints-errors.mlir:[[# @LINE + 1]]:8: error: the result of stablehlo.tanh: cannot read HloSharding '{bogus}'
  %y = stablehlo.tanh %x {mhlo.sharding = "{bogus}"} : tensor<16x8xf32>
  return %y : tensor<16x8xf32>
}
}
