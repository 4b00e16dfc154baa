// RUN: not autoshard-opt --mesh=tp=4 --autoshard-sharding-propagation=enable-alltoall=perhaps %s 2>&1 | filecheck %s
// RUN: not autoshard-opt --mesh=tp=4 --autoshard-recursive-programming='cluster=cpu:4 enable-alltoal=false' %s 2>&1 | filecheck %s --check-prefix=NAME

// Both planning passes have the option, which is true or false.
// CHECK: autoshard-opt: error: autoshard-sharding-propagation: option enable-alltoall=perhaps: expected true|false. Default: enable-alltoall=true.
// NAME: autoshard-opt: error: autoshard-recursive-programming: unknown option "enable-alltoal". Did you mean "enable-alltoall"?
func.func @main(%x: tensor<64x128xf32>) -> tensor<64x128xf32> {
  return %x : tensor<64x128xf32>
}
