// RUN: autoshard-opt --autoshard-reduce-once=cluster=v5p:2x2x1 %s | filecheck %s --check-prefixes=CHECK,ONCE
// RUN: autoshard-opt --autoshard-reduce-once='cluster=v5p:2x2x1 memory-limit=40MiB' %s | filecheck %s --check-prefixes=CHECK,TRIPS

// A loop of 8 trips adds up products over rows that dp cuts, and its result is cut by dp, too. With
// memory for it each device adds up 4 MiB of its own, and the parts are reduce-scattered behind the
// loop. Without, the sum stays cut, and each trip reduces.
// ONCE:  autoshard.plan = "{{.*}}\22reduced_once\22: {\22count\22: 1, \22axes\22: [\22dp\22]
// TRIPS-NOT: reduced_once

// CHECK-LABEL: func.func public @main
module attributes {autoshard.mesh = "dp=4"} {
func.func public @main(
    %x: tensor<8x4096x1024xf32> {mhlo.sharding = "{devices=[1,4,1]<=[4]}"})
    -> (tensor<1024x1024xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"}) {
  %first = stablehlo.constant {mhlo.sharding = "{replicated}"} dense<0> : tensor<i32>
  // ONCE: stablehlo.constant {mhlo.sharding = "{devices=[4,1,1]<=[4]}"} dense<0.000000e+00> : tensor<4x1024x1024xf32>
  %none = stablehlo.constant {mhlo.sharding = "{devices=[4,1]<=[4]}"} dense<0.0> : tensor<1024x1024xf32>
  // ONCE: stablehlo.while{{.*}}{devices=[1,4,1]<=[4]}, {devices=[4,1,1]<=[4]}}"
  %r:3 = stablehlo.while(%m = %first, %xs = %x, %sum = %none) : tensor<i32>, tensor<8x4096x1024xf32>, tensor<1024x1024xf32>
      attributes {mhlo.sharding = "{{replicated}, {devices=[1,4,1]<=[4]}, {devices=[4,1]<=[4]}}"}
  cond {
    %trips = stablehlo.constant {mhlo.sharding = "{replicated}"} dense<8> : tensor<i32>
    %go = stablehlo.compare LT, %m, %trips {mhlo.sharding = "{replicated}"} : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %zero = stablehlo.constant {mhlo.sharding = "{replicated}"} dense<0> : tensor<i32>
    %one = stablehlo.constant {mhlo.sharding = "{replicated}"} dense<1> : tensor<i32>
    %next = stablehlo.add %m, %one {mhlo.sharding = "{replicated}"} : tensor<i32>
    %slice = stablehlo.dynamic_slice %xs, %m, %zero, %zero, sizes = [1, 4096, 1024]
        {mhlo.sharding = "{devices=[1,4,1]<=[4]}", autoshard.strategy = "[{}, {dp}, {}], [], [], [] -> [{}, {dp}, {}]"}
        : (tensor<8x4096x1024xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4096x1024xf32>
    %part = stablehlo.reshape %slice {mhlo.sharding = "{devices=[4,1]<=[4]}", autoshard.strategy = "[{}, {dp}, {}] -> [{dp}, {}]"}
        : (tensor<1x4096x1024xf32>) -> tensor<4096x1024xf32>
    // ONCE:       stablehlo.reshape {{.*}} {autoshard.strategy = "[{dp}, {}] -> [{dp}, {}, {}]"
    // ONCE:       stablehlo.dot_general {{.*}}, batching_dims = [0] x [0], contracting_dims = [1] x [1]
    // ONCE-SAME:  autoshard.strategy = "[{dp}, {}, {}], [{dp}, {}, {}] -> [{dp}, {}, {}]"
    // ONCE-SAME:  -> tensor<4x1024x1024xf32>
    // TRIPS:      stablehlo.dot_general
    // TRIPS-SAME: autoshard.strategy = "[{dp}, {}], [{dp}, {}] -> [{dp}, {}]"
    %g = stablehlo.dot_general %part, %part, contracting_dims = [0] x [0]
        {mhlo.sharding = "{devices=[4,1]<=[4]}", autoshard.strategy = "[{dp}, {}], [{dp}, {}] -> [{dp}, {}]"}
        : (tensor<4096x1024xf32>, tensor<4096x1024xf32>) -> tensor<1024x1024xf32>
    // ONCE:      stablehlo.add
    // ONCE-SAME: autoshard.strategy = "[{dp}, {}, {}], [{dp}, {}, {}] -> [{dp}, {}, {}]"
    %more = stablehlo.add %sum, %g
        {mhlo.sharding = "{devices=[4,1]<=[4]}", autoshard.strategy = "[{dp}, {}], [{dp}, {}] -> [{dp}, {}]"}
        : tensor<1024x1024xf32>
    stablehlo.return %next, %xs, %more : tensor<i32>, tensor<8x4096x1024xf32>, tensor<1024x1024xf32>
  }
  // ONCE:      stablehlo.reduce({{.*}}) applies stablehlo.add across dimensions = [0]
  // ONCE-SAME: autoshard.strategy = "[{dp}, {}, {}], [] -> [{dp}, {}]", mhlo.sharding = "{devices=[4,1]<=[4]}"
  return %r#2 : tensor<1024x1024xf32>
}
}
