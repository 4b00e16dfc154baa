// RUN: autoshard-opt --autoshard-recursive-programming='cluster=ascend910b:8 mesh=d=8 cost-model=symbolic mem-coeff=0.013' --plan-json=%t.json %s -o %t.mlir && filecheck %s < %t.json

// The symbolic cost decides, and the plan keeps what it weighed beside its seconds.
// CHECK: "cost_model": "symbolic",
// CHECK: "symbolic_costs": {
// CHECK:   "mem_coeff": 0.013,
// CHECK:     "dot_general_0": {
// CHECK:         "op_cost": 26.624,
// CHECK:       "chosen": "I"
func.func public @main(%x: tensor<8192x4096xf32>, %w: tensor<4096x1xf32>) -> tensor<8192x1xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8192x4096xf32>, tensor<4096x1xf32>) -> tensor<8192x1xf32>
  return %0 : tensor<8192x1xf32>
}
