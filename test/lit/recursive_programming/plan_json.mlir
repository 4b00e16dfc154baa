// RUN: autoshard-opt --autoshard-recursive-programming='cluster=h100:2x4 mesh=dp=8' --plan-json=%t.json -o %t.mlir %s && filecheck %s < %t.json
// RUN: autoshard-opt --autoshard-recursive-programming='cluster=h100:2x4 mesh=dp=8' --autoshard-export-shardy --plan-json=%t.exported.json -o %t.mlir %s && filecheck %s < %t.exported.json
// RUN: autoshard-opt --verify-diagnostics --autoshard-recursive-programming='cluster=h100:2x4 mesh=dp=8' --plan-json=%t.verified.json -o %t.mlir %s && filecheck %s < %t.verified.json
// RUN: autoshard-opt --mesh=dp=8 --autoshard-import-strategies --autoshard-sharding-propagation --plan-json=%t.bytes.json -o %t.mlir %s && filecheck %s --check-prefix=BYTES < %t.bytes.json

// The record of a plan as JSON, also where an export follows: numbers, seconds by phase, arguments,
// every op and collective with its line, and when in the step they are. A plan by propagation has bytes, and says why nothing else.
// CHECK:      "autoshard_record": 4,
// CHECK:      "step_seconds": {{[0-9.e-]+}},
// CHECK-NEXT: "compute_seconds": {{[0-9.e-]+}},
// CHECK-NEXT: "communication_seconds": {{[0-9.e-]+}},
// CHECK-NEXT: "peak_bytes_per_device": {{[0-9.e+]+}},
// CHECK:      "cluster": "h100:2x4",
// CHECK-NEXT: "mesh": "dp=8",
// CHECK:      "lower_bound_seconds": {{[0-9.e-]+}},
// CHECK:      "planning_seconds": {
// CHECK-NEXT:   "strategies": {{[0-9.e-]+}},
// CHECK:      "gap": {{[0-9.e-]+}}
// CHECK:      "arguments": [
// CHECK:        "id": "argument *",
// CHECK-NEXT:   "type": "65536x128xf32",
// CHECK-NEXT:   "sharding": "[{dp}, {}]",
// CHECK-NEXT:   "bytes": 8388608.0,
// CHECK-NEXT:   "count": 2,
// CHECK:      "ops": [
// CHECK:        "id": "dot_general@plan_json.mlir:{{[0-9]+}}#0",
// CHECK:        "strategy": "[{dp}, {}], [{dp}, {}] -> [{}, {}]",
// CHECK:      "collectives": [
// CHECK:        "kind": "all-reduce",
// CHECK-NEXT:   "axes": [
// CHECK-NEXT:     "dp"
// CHECK-NEXT:   ],
// CHECK-NEXT:   "bytes": 114688.0,
// CHECK-NEXT:   "times": 1.0,
// CHECK-NEXT:   "seconds": {{[0-9.e-]+}},
// CHECK-NEXT:   "location": "{{.*}}plan_json.mlir:{{[0-9]+}}"
// CHECK:      "memory": [
// CHECK:      "bars": [
// CHECK:          "compute"
// CHECK:        "name": "dot_general@plan_json.mlir:{{[0-9]+}}",
// CHECK:        "start": 0.0,
// CHECK:          "network",
// CHECK-NEXT:     "switched links"
// CHECK:        "name": "all-reduce of dot_general for result 0 of dot_general@plan_json.mlir:{{[0-9]+}}",
// CHECK:      "repeats": []
// BYTES:      "step_seconds": null,
// BYTES:      "resharded_bytes": 114688.0,
// BYTES:      "missing": "planned without a cluster
// BYTES:        "kind": "all-reduce",
// BYTES:        "bytes": 114688.0,
func.func public @main(%x: tensor<65536x128xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"}, %y: tensor<65536x128xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"})
    -> (tensor<128x128xf32> {mhlo.sharding = "{replicated}"}) {
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<65536x128xf32>, tensor<65536x128xf32>) -> tensor<128x128xf32>
  return %0 : tensor<128x128xf32>
}
