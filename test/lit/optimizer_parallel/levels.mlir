// RUN: autoshard-opt --autoshard-optimizer-parallel='level=1 threshold-kb=8' %s | filecheck %s --check-prefixes=CHECK,ONE
// RUN: autoshard-opt --autoshard-optimizer-parallel='level=2 threshold-kb=8' %s | filecheck %s --check-prefixes=CHECK,TWO
// RUN: autoshard-opt --autoshard-optimizer-parallel='level=3 threshold-kb=8' %s | filecheck %s --check-prefixes=CHECK,THREE
// RUN: autoshard-opt --autoshard-optimizer-parallel='level=3 threshold-kb=8.1' %s | filecheck %s --check-prefix=SMALL

// A parameter of 64 x 32 x 4 bytes = 8 KiB and its momentum are on all 4 devices. Level 1: the
// momentum is spread, the all-reduced gradient is cut where it is added, the new parameter is
// gathered: 3/2 + 3/4 times 8 KiB are sent. Level 2: the gradient is reduce-scattered, 3/4 + 3/4
// times. Level 3: the parameter is spread, gathered for the forward pass only.
// ONE:   autoshard.resharded_bytes = 1.843200e+04
// TWO:   autoshard.resharded_bytes = 1.228800e+04
// THREE: autoshard.resharded_bytes = 1.228800e+04
// SMALL-NOT: devices=[4,1]<=[4]}", tf.aliasing_output

// CHECK-LABEL: func.func public @main
// ONE-SAME:    %arg0: tensor<64x32xf32> {mhlo.sharding = "{replicated}"
// TWO-SAME:    %arg0: tensor<64x32xf32> {mhlo.sharding = "{replicated}"
// THREE-SAME:  %arg0: tensor<64x32xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"
// CHECK-SAME:  %arg1: tensor<64x32xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"
module attributes {autoshard.mesh = "dp=4"} {
func.func public @main(
    %w: tensor<64x32xf32> {tf.aliasing_output = 0 : i32, mhlo.sharding = "{replicated}"},
    %m: tensor<64x32xf32> {tf.aliasing_output = 1 : i32, mhlo.sharding = "{replicated}"},
    %x: tensor<128x64xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"})
    -> (tensor<64x32xf32> {mhlo.sharding = "{replicated}"}, tensor<64x32xf32> {mhlo.sharding = "{replicated}"}) {
  %half = stablehlo.constant {mhlo.sharding = "{replicated}"} dense<5.000000e-01> : tensor<64x32xf32>
  // CHECK:      stablehlo.dot_general
  // CHECK-SAME: autoshard.strategy = "[{dp}, {}], [{}, {}] -> [{dp}, {}]"
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      {mhlo.sharding = "{devices=[4,1]<=[4]}", autoshard.strategy = "[{dp}, {}], [{}, {}] -> [{dp}, {}]"}
      : (tensor<128x64xf32>, tensor<64x32xf32>) -> tensor<128x32xf32>
  // CHECK:      stablehlo.dot_general
  // ONE-SAME:   autoshard.strategy = "[{dp}, {}], [{dp}, {}] -> [{}, {}]", mhlo.sharding = "{replicated}"
  // TWO-SAME:   autoshard.strategy = "[{dp}, {}], [{dp}, {}] -> [{dp}, {}]", mhlo.sharding = "{devices=[4,1]<=[4]}"
  // THREE-SAME: autoshard.strategy = "[{dp}, {}], [{dp}, {}] -> [{dp}, {}]", mhlo.sharding = "{devices=[4,1]<=[4]}"
  %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0]
      {mhlo.sharding = "{replicated}", autoshard.strategy = "[{dp}, {}], [{dp}, {}] -> [{}, {}]"}
      : (tensor<128x64xf32>, tensor<128x32xf32>) -> tensor<64x32xf32>
  // CHECK:      stablehlo.multiply
  // CHECK-SAME: autoshard.strategy = "[{dp}, {}], [{dp}, {}] -> [{dp}, {}]"
  %old = stablehlo.multiply %m, %half {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"} : tensor<64x32xf32>
  // CHECK:      stablehlo.add
  // CHECK-SAME: autoshard.strategy = "[{dp}, {}], [{dp}, {}] -> [{dp}, {}]"
  %new = stablehlo.add %old, %g {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"} : tensor<64x32xf32>
  // CHECK:      stablehlo.subtract
  // CHECK-SAME: autoshard.strategy = "[{dp}, {}], [{dp}, {}] -> [{dp}, {}]"
  %moved = stablehlo.subtract %w, %new {mhlo.sharding = "{replicated}", autoshard.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"} : tensor<64x32xf32>
  return %moved, %new : tensor<64x32xf32>, tensor<64x32xf32>
}
}
