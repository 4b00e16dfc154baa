// RUN: autoshard-opt --autoshard-import-strategies --split-input-file %s | filecheck %s

sdy.mesh @mesh = <["dp"=2, "tp"=4]>

// Shardings that cut inside an axis of the mesh refine it; pins name the parts.
// CHECK:       module attributes {autoshard.mesh = "dp=2,tp_0=2,tp_1=2"}
// CHECK-LABEL: func.func @main
// CHECK-SAME:    autoshard.pin = "[{dp}, {tp_0, tp_1}]"
func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {"tp"}]>}) -> tensor<8x16xf32> {
  // CHECK: autoshard.pin = "[{}, {tp_0}]"
  %0 = sdy.sharding_constraint %x <@mesh, [{}, {"tp":(1)2}]> : tensor<8x16xf32>
  // CHECK: autoshard.pin = "[{tp_1}, {}]"
  %1 = sdy.sharding_constraint %0 <@mesh, [{"tp":(2)2}, {}]> : tensor<8x16xf32>
  return %1 : tensor<8x16xf32>
}

// -----

sdy.mesh @mesh = <["dp"=2, "unit"=1, "tp"=4]>

// Axes of size 1 may be named; they cut nothing.
// CHECK:       module attributes {autoshard.mesh = "dp=2,tp=4"}
// CHECK-LABEL: func.func @main
// CHECK-SAME:    autoshard.pin = "[{dp}, {}]"
func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {"unit"}]>}) -> tensor<8x16xf32> {
  return %x : tensor<8x16xf32>
}

// -----

sdy.mesh @rows = <["x"=8]>
sdy.mesh @grid = <["a"=2, "b"=4]>

// Several meshes over the same devices have one common refinement.
// CHECK:       autoshard.mesh = "x_0=2,x_1=4"
// CHECK-LABEL: func.func @main
// CHECK-SAME:    %arg0: tensor<8x16xf32> {autoshard.pin = "[{x_0, x_1}, {}]"}
// CHECK-SAME:    %arg1: tensor<8x16xf32> {autoshard.pin = "[{x_1}, {x_0}]"}
func.func @main(
    %x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@rows, [{"x"}, {}]>},
    %y: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@grid, [{"b"}, {"a"}]>}) -> tensor<8x16xf32> {
  %0 = stablehlo.add %x, %y : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
