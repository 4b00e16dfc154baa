// RUN: not autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --split-input-file %s 2>&1 | filecheck %s
// RUN: not autoshard-opt --autoshard-import-strategies %s 2>&1 | filecheck %s --check-prefix=MESH

// A sharding of more devices than the mesh has; and one without any mesh that names its devices.
// CHECK: mhlo_sharding-errors.mlir:[[# @LINE + 2]]:1: error: sharding {devices=[16,1]<=[16]} has 16 devices, but mesh "dp=2,tp=4" has 8. Use the mesh that the sharding was made for.
// MESH:  mhlo_sharding-errors.mlir:[[# @LINE + 1]]:1: error: mhlo.sharding = {devices=[16,1]<=[16]}: no mesh gives names to its devices. Give one: --mesh=dp=2,tp=4
func.func @main(%x: tensor<16x16xf32> {mhlo.sharding = "{devices=[16,1]<=[16]}"}) -> tensor<16x16xf32> {
  return %x : tensor<16x16xf32>
}

// -----

// CHECK: mhlo_sharding-errors.mlir:[[# @LINE + 2]]:8: error: sharding {devices=[2,1,4]<=[8]} has 3 dims, but the value has 2.
func.func @wrong_rank(%x: tensor<16x16xf32>) -> tensor<16x16xf32> {
  %0 = stablehlo.tanh %x {mhlo.sharding = "{devices=[2,1,4]<=[8]}"} : tensor<16x16xf32>
  return %0 : tensor<16x16xf32>
}

// -----

// CHECK: mhlo_sharding-errors.mlir:[[# @LINE + 2]]:8: error: cannot read HloSharding '{devices[2]': expected '='
func.func @unreadable(%x: tensor<16x16xf32>) -> tensor<16x16xf32> {
  %0 = stablehlo.tanh %x {mhlo.sharding = "{devices[2]"} : tensor<16x16xf32>
  return %0 : tensor<16x16xf32>
}

// -----

// CHECK: mhlo_sharding-errors.mlir:[[# @LINE + 2]]:8: error: {maximal device=3} puts the value on one device
func.func @maximal(%x: tensor<16x16xf32>) -> tensor<16x16xf32> {
  %0 = stablehlo.tanh %x {mhlo.sharding = "{maximal device=3}"} : tensor<16x16xf32>
  return %0 : tensor<16x16xf32>
}

// -----

// CHECK: mhlo_sharding-errors.mlir:[[# @LINE + 2]]:8: error: SPMDFullToShardShape: a manual computation in GSPMD form. Lower with Shardy active
func.func @manual_in_gspmd_form(%x: tensor<16x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.custom_call @SPMDFullToShardShape(%x) {mhlo.sharding = "{manual}"} : (tensor<16x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
