// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation %s 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=WARNING < %t
// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation=trip-count=7 %s 2>%t | filecheck %s --check-prefix=SEVEN

// A loop that ends when the data says so counts as 100 trips, or as the option says, and a warning
// says where: 2 x 3584 bytes a trip.
// CHECK:       autoshard.resharded_bytes = 7.168000e+05
// SEVEN:       autoshard.resharded_bytes = 5.017600e+04
// WARNING:     warning: 1 loop without a known trip count is counted as the option trip-count says, first at {{.*}}unknown_trip_count.mlir:[[# @LINE + 2]]:{{[0-9]+}}
func.func @main(%x: tensor<64x128xf32>, %go: tensor<i1>) -> tensor<64x128xf32> {
  %0:2 = stablehlo.while(%g = %go, %c = %x) : tensor<i1>, tensor<64x128xf32>
  cond {
    stablehlo.return %g : tensor<i1>
  } do {
    %d = stablehlo.tanh %c {autoshard.in_strategy = ["[{dp, tp}, {}]"]} : tensor<64x128xf32>
    %e = stablehlo.cosine %d {autoshard.in_strategy = ["[{}, {dp, tp}]"]} : tensor<64x128xf32>
    %again = stablehlo.not %g : tensor<i1>
    stablehlo.return %again, %e : tensor<i1>, tensor<64x128xf32>
  }
  return %0#1 : tensor<64x128xf32>
}
