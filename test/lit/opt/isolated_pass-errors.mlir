// RUN: not autoshard-opt --split-input-file --sdy-convert-global-to-local %s 2>&1 | filecheck %s

// What a pass in a process of its own reports keeps its place and its notes.
// CHECK-NOT:  Traceback
// CHECK:      isolated_pass-errors.mlir:[[# @LINE + 5]]:3: error: failed to legalize operation 'sdy.sharding_group'
// CHECK:      isolated_pass-errors.mlir:[[# @LINE + 4]]:3: note: see current operation
sdy.mesh @mesh = <["tp"=4]>
func.func @main(
    %x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}]>}) -> tensor<8xf32> {
  sdy.sharding_group %x group_id=0 : tensor<8xf32>
  return %x : tensor<8xf32>
}
