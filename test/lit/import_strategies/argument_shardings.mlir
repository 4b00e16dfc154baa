// RUN: autoshard-opt --autoshard-import-strategies --split-input-file %s | filecheck %s

sdy.mesh @mesh = <["dp"=2, "tp"=4]>

// Shardings of main's arguments and results become pins; open dims stay open.
// CHECK:       module attributes {autoshard.mesh = "dp=2,tp=4"}
// CHECK-LABEL: func.func @main
// CHECK-SAME:    %arg0: tensor<8x16xf32> {autoshard.pin = "[{dp}, {}]"}
// CHECK-SAME:    %arg1: tensor<16x8xf32> {autoshard.pin = "[{?}, {tp, ?}]"}
// CHECK-SAME:    -> (tensor<8x8xf32> {autoshard.pin = "[{}, {dp, tp}]", jax.result_info = "result"})
func.func @main(
    %x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>},
    %w: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"tp", ?}]>})
    -> (tensor<8x8xf32> {jax.result_info = "result", sdy.sharding = #sdy.sharding<@mesh, [{}, {"dp", "tp"}]>}) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8x16xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// -----

sdy.mesh @mesh = <["dp"=2, "tp"=4]>

// A sharding that is open everywhere says nothing, a closed one without axes says: replicated.
// CHECK-LABEL: func.func @main
// CHECK-SAME:    %arg0: tensor<8xf32>, %arg1: tensor<8xf32> {autoshard.pin = "[{}]"}
// CHECK-NOT:     sdy.sharding =
func.func @main(
    %open: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}]>},
    %replicated: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) -> tensor<8xf32> {
  %0 = stablehlo.add %open, %replicated : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

sdy.mesh @mesh = <["dp"=2, "tp"=4]>

// What private functions say of their arguments is dropped: these are the caller's values.
// CHECK-LABEL: func.func @main
// CHECK:         %arg0: tensor<8xf32> {autoshard.pin = "[{dp}]"}
// CHECK-LABEL: func.func private @inner
// CHECK-SAME:    (%arg0: tensor<8xf32>) -> tensor<8xf32>
func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}]>}) -> tensor<8xf32> {
  %0 = func.call @inner(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
func.func private @inner(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}]>}) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

// -----

sdy.mesh @mesh = <["dp"=2, "tp"=4]>
sdy.mesh @one = <["x"=1]>

// A sharding over one device, or one that is open everywhere, says nothing beside mhlo.sharding.
// CHECK-LABEL: func.func @main
// CHECK-SAME:    %arg0: tensor<8xf32> {autoshard.pin = "[{dp}]"}, %arg1: tensor<8xf32> {autoshard.pin = "[{tp}]"}
func.func @main(
    %one: tensor<8xf32> {sdy.sharding = #sdy.sharding<@one, [{}]>, mhlo.sharding = "{devices=[2,4]<=[8] last_tile_dim_replicate}"},
    %open: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}]>, mhlo.sharding = "{devices=[4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"}) -> tensor<8xf32> {
  %0 = stablehlo.add %one, %open : tensor<8xf32>
  return %0 : tensor<8xf32>
}
