// RUN: autoshard-opt --split-input-file --cse %s | filecheck %s
// RUN: autoshard-opt --split-input-file %s | autoshard-opt --split-input-file --cse | filecheck %s

// Modules separated by lines // ----- are run one by one, and come out separated again.
// CHECK:       func.func @first
// CHECK:       // -----
// CHECK-NEXT:  module {
// CHECK-NEXT:    func.func @second
// CHECK:       // -----
// CHECK-NEXT:  module {
// CHECK-NEXT:  }
// CHECK-NOT:   // -----
func.func @first(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

func.func @second(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// ----- an empty module
