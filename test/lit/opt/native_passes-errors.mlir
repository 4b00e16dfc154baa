// RUN: not autoshard-opt --canonicalise %s 2>&1 | filecheck %s --check-prefix=NAME
// RUN: not autoshard-opt --canonicalize='max-iteration=3' %s 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: not autoshard-opt --canonicalize='max-iterations=many' %s 2>&1 | filecheck %s --check-prefix=VALUE
// RUN: not autoshard-opt --sdy-aggressive-propagate='propagation-strategy=bold' %s 2>&1 | filecheck %s --check-prefix=CHOICE
// RUN: not autoshard-opt --sdy-sharding-group-import %s 2>&1 | filecheck %s --check-prefix=FAIL

// What jaxlib says about its passes becomes one line with a way out; what it says about the module
// names the file.
// NAME:      autoshard-opt: error: unknown pass or option --canonicalise. Did you mean "--canonicalize"?
// OPTION:    autoshard-opt: error: canonicalize: unknown option "max-iteration". Options: {{.*}}max-iterations=10
// VALUE:     autoshard-opt: error: canonicalize: option max-iterations does not take "many". Options: {{.*}}max-iterations=10
// CHOICE:    autoshard-opt: error: sdy-aggressive-propagate: option propagation-strategy does not take "bold".
// FAIL-NOT:  Traceback
// FAIL:      native_passes-errors.mlir:[[# @LINE + 5]]:3: error: ShardingGroupOps values must have the same shape for groupId: 0
// FAIL-NEXT:   sdy.sharding_group %y group_id=0 : tensor<4x8xf32>
// FAIL-NEXT: {{^  \^}}
func.func @main(%x: tensor<8xf32>, %y: tensor<4x8xf32>) -> tensor<8xf32> {
  sdy.sharding_group %x group_id=0 : tensor<8xf32>
  sdy.sharding_group %y group_id=0 : tensor<4x8xf32>
  return %x : tensor<8xf32>
}
