// RUN: not autoshard-opt --autoshard-host-offload=arguments=state %s 2>&1 | filecheck %s

// CHECK: autoshard-host-offload: no argument is called state; there are 1, without names. Give a name, params or params['w'], or a number from 0.
func.func public @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  return %x : tensor<8x8xf32>
}
