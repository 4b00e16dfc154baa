// RUN: autoshard-opt --sdy-populate-op-sharding-rules %s | filecheck %s
// RUN: autoshard-opt --sdy-propagation-pipeline --sdy-insert-explicit-reshards='enable-full-version=true' --canonicalize --sdy-reshard-to-collectives %s | filecheck %s --check-prefix=SHARDY

sdy.mesh @mesh = <["tp"=4]>

// A flag puts a pass of jaxlib under the op it runs on: the rules are a pass on functions. Shardy's
// whole way to collectives runs as four flags.
// CHECK-LABEL:  func.func @row_parallel
// SHARDY-LABEL: func.func @row_parallel
func.func @row_parallel(
    %x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>},
    %w: tensor<16x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}, {}]>})
    -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  // CHECK:       sdy.sharding_rule = #sdy.op_sharding_rule<([i, k], [k, j])->([i, j]) {i=8, j=4, k=16} reduction={k}>
  // SHARDY:      stablehlo.dot_general
  // SHARDY-NEXT: sdy.all_reduce {"tp"}
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  return %y : tensor<8x4xf32>
}
