// RUN: autoshard-opt --mlir-timing --cse --sdy-populate-op-sharding-rules %s 2>&1 >%t | filecheck %s

// A row for each pass, and for reading, parsing and printing.
// CHECK:       autoshard-opt timing
// CHECK-NEXT:  {{ *[0-9]+\.[0-9]+ s +[0-9.]+%  read$}}
// CHECK-NEXT:  {{ s .*%  parse$}}
// CHECK-NEXT:  {{ s .*%  cse$}}
// CHECK-NEXT:  {{ s .*%  sdy-populate-op-sharding-rules$}}
// CHECK-NEXT:  {{ s .*%  print$}}
// CHECK-NEXT:  {{ s 100.0%  total$}}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
