// RUN: autoshard-opt --mesh=dp=2,tp=4 --autoshard-import-strategies --autoshard-sharding-propagation --split-input-file %s | filecheck %s

// Bytes are counted by the element: 8192 elements, 1024 a device, 7/8 of them move. fp8 has 1 byte.
// CHECK:       autoshard.resharded_bytes = 8.960000e+02
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128xf8E4M3FN> {mhlo.sharding = "{devices=[8,1]<=[8]}"})
    -> (tensor<64x128xf8E4M3FN> {mhlo.sharding = "{devices=[1,8]<=[8]}"}) {
  return %x : tensor<64x128xf8E4M3FN>
}

// -----

// int4 has half a byte.
// CHECK:       autoshard.resharded_bytes = 4.480000e+02
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128xi4> {mhlo.sharding = "{devices=[8,1]<=[8]}"})
    -> (tensor<64x128xi4> {mhlo.sharding = "{devices=[1,8]<=[8]}"}) {
  return %x : tensor<64x128xi4>
}

// -----

// A predicate takes a byte.
// CHECK:       autoshard.resharded_bytes = 8.960000e+02
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128xi1> {mhlo.sharding = "{devices=[8,1]<=[8]}"})
    -> (tensor<64x128xi1> {mhlo.sharding = "{devices=[1,8]<=[8]}"}) {
  return %x : tensor<64x128xi1>
}

// -----

// A complex number has two parts of 4 bytes.
// CHECK:       autoshard.resharded_bytes = 7.168000e+03
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x128xcomplex<f32>> {mhlo.sharding = "{devices=[8,1]<=[8]}"})
    -> (tensor<64x128xcomplex<f32>> {mhlo.sharding = "{devices=[1,8]<=[8]}"}) {
  return %x : tensor<64x128xcomplex<f32>>
}
