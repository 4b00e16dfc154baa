// RUN: autoshard-opt --pass-pipeline='builtin.module(func.func(sdy-populate-op-sharding-rules,cse),canonicalize{max-iterations=3})' %s | filecheck %s
// RUN: autoshard-opt --pass-pipeline=' func.func( sdy-populate-op-sharding-rules , cse ) , canonicalize{ max-iterations=3 } ' %s | filecheck %s
// RUN: autoshard-opt --pass-pipeline='builtin.module()' %s | filecheck %s --check-prefix=EMPTY

// A pipeline nests passes under the op they run on; builtin.module(...) may be left out.
// CHECK-LABEL:    func.func @merges_equal_ops
// CHECK-COUNT-1:  stablehlo.add %arg0, %arg0 {sdy.sharding_rule = #sdy.op_sharding_rule<([i], [i])->([i]) {i=4}>}
// CHECK-NOT:      stablehlo.add
// EMPTY-COUNT-2:  stablehlo.add
func.func @merges_equal_ops(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  %1 = stablehlo.add %x, %x : tensor<4xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<4xf32>
  return %2 : tensor<4xf32>
}
