// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation %s | filecheck %s

// A loop of 10 trips needs columns inside: the carried value moves there once, before the loop, and
// not ten times inside. The argument is rows, 4096 bytes a device, 7/8 of them are sent.
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"}) -> tensor<64x128xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %ten = stablehlo.constant dense<10> : tensor<i32>
  // CHECK:      stablehlo.while
  // CHECK-SAME: {replicated}, {devices=[1,8]<=[8]}
  %0:2 = stablehlo.while(%i = %zero, %c = %x) : tensor<i32>, tensor<64x128xf32>
  cond {
    %less = stablehlo.compare LT, %i, %ten : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  } do {
    %next = stablehlo.add %i, %one : tensor<i32>
    %d = stablehlo.tanh %c {autoshard.in_strategy = ["[{}, {dp, tp}]"]} : tensor<64x128xf32>
    stablehlo.return %next, %d : tensor<i32>, tensor<64x128xf32>
  }
  return %0#1 : tensor<64x128xf32>
}
