// RUN: gzip -c %s | head -c 40 > %t.gz
// RUN: not autoshard-opt %t.gz 2>&1 | filecheck %s

// A packed file that was cut off is an error of one line.
// CHECK-NOT:  Traceback
// CHECK:      {{.*}}.gz: error: cannot unpack: Compressed file ended before the end-of-stream marker was reached
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
