// RUN: autoshard-opt --autoshard-import-strategies --split-input-file %s | filecheck %s

// The layouts of marks bring their own mesh; without any other, theirs is the plan's.
// CHECK:       module attributes {autoshard.mesh = "dp=2,sp=2,mp=2"}
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  // CHECK:       @autoshard.mark(%arg0)
  // CHECK-SAME:  autoshard.pin = "[{mp}, {sp, dp}]"
  %0 = stablehlo.custom_call @autoshard.mark(%x) {
      autoshard.group = 0 : i64, autoshard.index = 0 : i64, autoshard.role = "in",
      autoshard.layout = "mesh[dp=2,sp=2,mp=2] [{mp}, {sp, dp}]"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// -----

// Layouts over different device matrices are expressed on their common refinement.
// CHECK:       module attributes {autoshard.mesh = "dp=2,tp_0=2,tp_1=2"}
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  // CHECK:       @autoshard.mark(%arg0)
  // CHECK-SAME:  autoshard.pin = "[{dp}, {}]"
  %0 = stablehlo.custom_call @autoshard.mark(%x) {
      autoshard.group = 0 : i64, autoshard.index = 0 : i64, autoshard.role = "in",
      autoshard.layout = "mesh[dp=2,tp=4] [{dp}, {}]"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  // CHECK:       @autoshard.mark(%0)
  // CHECK-SAME:  autoshard.pin = "[{dp, tp_0}, {}]"
  %1 = stablehlo.custom_call @autoshard.mark(%0) {
      autoshard.group = 1 : i64, autoshard.index = 0 : i64, autoshard.role = "in",
      autoshard.layout = "mesh[x=4,y=2] [{x}, {}]"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  // CHECK:       @autoshard.mark(%1)
  // CHECK-SAME:  autoshard.pin = "[{dp, tp_0, tp_1}, {}]"
  %2 = stablehlo.custom_call @autoshard.mark(%1) {
      autoshard.group = 1 : i64, autoshard.index = 0 : i64, autoshard.role = "in",
      autoshard.layout = "mesh[all=8] [{all}, {}]"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %2 : tensor<8x16xf32>
}

// -----

// A dim that vmap added is open, in layouts and in tuples.
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  // CHECK:       @autoshard.mark(%arg0)
  // CHECK-SAME:  autoshard.pin = "[{?}, {tp}]"
  %0 = stablehlo.custom_call @autoshard.mark(%x) {
      autoshard.group = 0 : i64, autoshard.index = 0 : i64, autoshard.role = "in",
      autoshard.layout = "mesh[dp=2,tp=4] [{?}, {tp}]"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  // CHECK:       @autoshard.mark(%0)
  // CHECK-SAME:  autoshard.pin = "(?, 2)"
  %1 = stablehlo.custom_call @autoshard.mark(%0) {
      autoshard.group = 1 : i64, autoshard.index = 0 : i64, autoshard.role = "in",
      autoshard.layout = "(?, 2)"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %1 : tensor<8x16xf32>
}
