// RUN: not autoshard-opt --sdy-propagation-pipeline -o %t.mlir %s 2>&1 | filecheck %s

// A pass of jaxlib that ends the process on a failed check (here: no function is called main) is
// an error with exit code 1 too, and names the pass.
// CHECK:      Check failed: funcOp Failed to lookup function: main
// CHECK-NEXT: aborting_pass-errors.mlir: error: sdy-propagation-pipeline ended the process (SIGABRT).
// CHECK-NOT:  Traceback
sdy.mesh @mesh = <["tp"=4]>
func.func @caller(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}]>}) -> tensor<8xf32> {
  %0 = func.call @callee(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
func.func private @callee(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}
