// RUN: autoshard-opt --mesh=x=8 --autoshard-import-strategies --split-input-file %s | filecheck %s
// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --split-input-file %s | filecheck %s --check-prefix=FITS

// Numbers of blocks that whole axes cannot make split the mesh into primes; where they fit, the
// mesh stays as it is.
// CHECK:      module attributes {autoshard.mesh = "x_0=2,x_1=2,x_2=2"}
// FITS:       module attributes {autoshard.mesh = "dp=2,tp=4"}
func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  // CHECK:      @autoshard.mark(%arg0)
  // CHECK-SAME: autoshard.pin = "(4, 2)"
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["(4, 2)"]} : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// -----

// CHECK:      module attributes {autoshard.mesh = "x_0=2,x_1=2,x_2=2"}
// FITS:       module attributes {autoshard.mesh = "dp=2,tp_0=2,tp_1=2"}
func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  // FITS:       @autoshard.mark(%arg0)
  // FITS-SAME:  autoshard.pin = "(2, 2)"
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["(2, 2)"]} : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// -----

// Not all devices have to be used: what is left replicates.
// CHECK:      module attributes {autoshard.mesh = "x=8"}
// FITS:       module attributes {autoshard.mesh = "dp=2,tp=4"}
func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  // CHECK:      autoshard.pin = "(1, 1)"
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["(1, 1)"]} : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
