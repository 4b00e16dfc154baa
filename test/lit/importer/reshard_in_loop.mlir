// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation --split-input-file %s | filecheck %s

// What must be resharded inside a loop counts once a trip: the body goes from rows to columns
// and the carried value comes back, 2 x 3584 bytes in each of 10 trips.
// CHECK:       autoshard.resharded_bytes = 7.168000e+04
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128xf32>) -> tensor<64x128xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %ten = stablehlo.constant dense<10> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %c = %x) : tensor<i32>, tensor<64x128xf32>
  cond {
    %less = stablehlo.compare LT, %i, %ten : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  } do {
    %next = stablehlo.add %i, %one : tensor<i32>
    // CHECK:      stablehlo.tanh
    // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}] -> [{dp, tp}, {}]"
    %d = stablehlo.tanh %c {autoshard.in_strategy = ["[{dp, tp}, {}]"]} : tensor<64x128xf32>
    // CHECK:      stablehlo.cosine
    // CHECK-SAME: autoshard.strategy = "[{}, {dp, tp}] -> [{}, {dp, tp}]"
    %e = stablehlo.cosine %d {autoshard.in_strategy = ["[{}, {dp, tp}]"]} : tensor<64x128xf32>
    stablehlo.return %next, %e : tensor<i32>, tensor<64x128xf32>
  }
  return %0#1 : tensor<64x128xf32>
}

// -----

// Loops in loops multiply: 10 x 3 trips.
// CHECK:       autoshard.resharded_bytes = 2.150400e+05
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128xf32>) -> tensor<64x128xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %ten = stablehlo.constant dense<10> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %c = %x) : tensor<i32>, tensor<64x128xf32>
  cond {
    %less = stablehlo.compare LT, %i, %ten : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  } do {
    %inner:2 = stablehlo.while(%j = %zero, %f = %c) : tensor<i32>, tensor<64x128xf32>
    cond {
      %less = stablehlo.compare LT, %j, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %less : tensor<i1>
    } do {
      %next = stablehlo.add %j, %one : tensor<i32>
      // CHECK:      stablehlo.tanh
      // CHECK-SAME: autoshard.strategy = "[{dp, tp}, {}] -> [{dp, tp}, {}]"
      %d = stablehlo.tanh %f {autoshard.in_strategy = ["[{dp, tp}, {}]"]} : tensor<64x128xf32>
      // CHECK:      stablehlo.cosine
      // CHECK-SAME: autoshard.strategy = "[{}, {dp, tp}] -> [{}, {dp, tp}]"
      %e = stablehlo.cosine %d {autoshard.in_strategy = ["[{}, {dp, tp}]"]} : tensor<64x128xf32>
      stablehlo.return %next, %e : tensor<i32>, tensor<64x128xf32>
    }
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %inner#1 : tensor<i32>, tensor<64x128xf32>
  }
  return %0#1 : tensor<64x128xf32>
}
