// RUN: autoshard-opt --autoshard-import-strategies %s | filecheck %s

sdy.mesh @mesh = <["dp"=2, "tp"=4]>
sdy.mesh @one = <["dp"=1, "tp"=1]>
sdy.mesh @maximal = <[], device_ids=[0]>

// A constraint pins its result. One over a mesh of a single device says nothing, and so does one
// that is open everywhere. Axes that must replicate are kept.
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  // CHECK:      sdy.sharding_constraint {{.*}}[{"dp"}, {?}]> {autoshard.pin = "[{dp}, {?}]"}
  %0 = sdy.sharding_constraint %x <@mesh, [{"dp"}, {?}]> : tensor<8x16xf32>
  // CHECK-NEXT: sdy.sharding_constraint %{{.*}} <@one, [{"dp"}, {"tp"}]> : tensor
  %1 = sdy.sharding_constraint %0 <@one, [{"dp"}, {"tp"}]> : tensor<8x16xf32>
  // CHECK-NEXT: sdy.sharding_constraint %{{.*}} <@maximal, []> : tensor
  %2 = sdy.sharding_constraint %1 <@maximal, []> : tensor<8x16xf32>
  // CHECK-NEXT: sdy.sharding_constraint %{{.*}} <@mesh, [{?}, {?}]> : tensor
  %3 = sdy.sharding_constraint %2 <@mesh, [{?}, {?}]> : tensor<8x16xf32>
  // CHECK-NEXT: sdy.sharding_constraint {{.*}} {autoshard.pin = "[{dp, ?}, {?}] replicated={tp}"}
  %4 = sdy.sharding_constraint %3 <@mesh, [{"dp", ?}, {?}], replicated={"tp"}> : tensor<8x16xf32>
  return %4 : tensor<8x16xf32>
}
