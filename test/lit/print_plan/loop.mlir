// RUN: autoshard-opt --autoshard-import-strategies --autoshard-sharding-propagation --autoshard-print-plan %s 2>&1 >%t | filecheck %s

// Ops inside a loop are listed, constants need no reshard, and what a device sends in all
// stands first.
// CHECK:       plan on mesh tp=2 (2 devices)
// CHECK-NEXT:  each device sends 0 B to reshard values
// CHECK:         stablehlo.while
// CHECK:         stablehlo.tanh {{ +}} {{.*}} [{tp}, {}] -> [{tp}, {}] {{ +}} [{tp}, {}]
// CHECK:       no reshards
module attributes {autoshard.mesh = "tp=2"} {
  func.func public @main(%x: tensor<8x4xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"}) -> tensor<8x4xf32> {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %half = stablehlo.constant dense<0.5> : tensor<8x4xf32>
    %0:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<8x4xf32>
    cond {
      %end = stablehlo.constant dense<3> : tensor<i32>
      %go = stablehlo.compare LT, %i, %end, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      %t = stablehlo.tanh %v : tensor<8x4xf32>
      %h = stablehlo.multiply %t, %half : tensor<8x4xf32>
      stablehlo.return %next, %h : tensor<i32>, tensor<8x4xf32>
    }
    return %0#1 : tensor<8x4xf32>
  }
}
