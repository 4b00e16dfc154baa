// RUN: autoshard-opt --autoshard-print-plan %s 2>&1 >%t.mlir | filecheck %s
// RUN: autoshard-opt --autoshard-print-plan='file=%t.txt' %s -o %t.mlir
// RUN: filecheck %s < %t.txt
// RUN: autoshard-opt --autoshard-print-plan='max-rows=1' %s 2>&1 >%t.mlir | filecheck %s --check-prefix=ROWS
// RUN: autoshard-opt %s -o %t.same && diff %t.mlir %t.same

// Tables of the interface, the ops and the reshards; the module stays as it is.
// CHECK:       plan on mesh dp=2,tp=4 (8 devices)
// CHECK:       arguments and results of @main
// CHECK:         arg 0 {{ +}} x {{ +}} 8x16xf32 {{ +}} [{dp}, {}] {{ +}} 4x16xf32 {{ +}} 256 B
// CHECK-NEXT:    arg 1 {{ +}} 16x64xf32 {{ +}} [{}, {tp}] {{ +}} 16x16xf32 {{ +}} 1 KiB
// CHECK-NEXT:    result 0 {{ +}} result['y'] {{ +}} 8x64xf32 {{ +}} [{dp}, {}] {{ +}} 4x64xf32 {{ +}} 1 KiB
// CHECK:       ops
// CHECK:         1 {{ +}} stablehlo.dot_general {{ +}} model.py:42 {{ +}} 8x64xf32 {{ +}} [{dp}, {}], [{}, {tp}] -> [{dp}, {tp}] {{ +}} [{dp}, {tp}]
// CHECK-NEXT:    2 {{ +}} stablehlo.tanh {{ +}} model.py:43 {{ +}} 8x64xf32 {{ +}} [{dp}, {tp}] -> [{dp}, {tp}] {{ +}} [{dp}, {tp}]
// CHECK:       reshards
// CHECK:         1 {{ +}} operand 0 {{ +}} func.return {{.*}} 8x64xf32 {{ +}} [{dp}, {tp}] {{ +}} [{dp}, {}] {{ +}} all-gather {{ +}} 2 KiB
// ROWS:        arg 0
// ROWS-NOT:    arg 1
// ROWS:        and 2 more rows (max-rows=1)
module attributes {autoshard.mesh = "dp=2,tp=4"} {
  func.func public @main(
      %x: tensor<8x16xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"} loc("x"),
      %w: tensor<16x64xf32> {mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"})
      -> (tensor<8x64xf32> {jax.result_info = "result['y']", mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"}) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
        {autoshard.strategy = "[{dp}, {}], [{}, {tp}] -> [{dp}, {tp}]", mhlo.sharding = "{devices=[2,4]<=[8]}"}
        : (tensor<8x16xf32>, tensor<16x64xf32>) -> tensor<8x64xf32> loc("src/model.py":42:8)
    %1 = stablehlo.tanh %0 {autoshard.strategy = "[{dp}, {tp}] -> [{dp}, {tp}]", mhlo.sharding = "{devices=[2,4]<=[8]}"}
        : tensor<8x64xf32> loc("src/model.py":43:8)
    %2 = stablehlo.tanh %1 {autoshard.strategy = "[{dp}, {tp}] -> [{dp}, {tp}]", mhlo.sharding = "{devices=[2,4]<=[8]}"}
        : tensor<8x64xf32> loc("src/model.py":43:8)
    return %2 : tensor<8x64xf32>
  }
}
