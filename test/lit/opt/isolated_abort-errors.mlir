// REQUIRES: jaxlib-0.10
// RUN: not autoshard-opt --split-input-file --pass-pipeline='builtin.module(sdy-propagation-pipeline,func.func(sdy-insert-explicit-reshards{enable-full-version=true}),canonicalize,func.func(sdy-reshard-to-collectives),canonicalize,sdy-convert-global-to-local)' %s 2>&1 | filecheck %s

// A pass that aborts its own process is an error like another: the message says what it printed,
// and ours goes on with the next module. (Newer jaxlib no longer aborts here.)
// CHECK-NOT:  Traceback
// CHECK:      isolated_abort-errors.mlir: error: builtin.module(sdy-convert-global-to-local) killed its process (SIGABRT): Check failed: op->hasOneUse()
// CHECK-SAME: This is a defect of jaxlib's pass: leave it out for this module
sdy.mesh @mesh = <["tp"=4]>
func.func @reduce_scatter(
    %x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>},
    %w: tensor<16x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}, {}]>})
    -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}, {}]>}) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  return %y : tensor<8x4xf32>
}

// -----

// CHECK:      isolated_abort-errors.mlir:[[# @LINE + 2]]:10: error: use of undeclared SSA value name
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %y : tensor<8xf32>
}
