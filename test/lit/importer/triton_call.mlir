// RUN: autoshard-opt --mesh=gpu=8 --autoshard-import-strategies --autoshard-recursive-programming='cluster=h100:8' %s 2>&1 | filecheck %s

// A kernel that Triton compiles holds a program that nobody reads here: it is whole, and what that costs is said.
// CHECK: triton_call.mlir:[[# @LINE + 5]]:8: warning: 1 kernels run whole on every device, {{.*}} of {{.*}}, with 128 MiB of operands and results: nothing of them was proven
// CHECK-SAME: autoshard.kernel{{.*}}jax.shard_map{{.*}}autoshard.register_rule
// CHECK: stablehlo.custom_call @__gpu$xla.gpu.triton
// CHECK-SAME: autoshard.strategy = "[{}, {}] -> [{}, {}]"
func.func @main(%x: tensor<4096x4096xf32>) -> tensor<4096x4096xf32> {
  %0 = stablehlo.custom_call @__gpu$xla.gpu.triton(%x) {api_version = 4 : i32, backend_config = {grid_x = 256 : i32, grid_y = 1 : i32, grid_z = 1 : i32, ir = "", name = "double", num_stages = 3 : i32, num_warps = 4 : i32}} : (tensor<4096x4096xf32>) -> tensor<4096x4096xf32>
  return %0 : tensor<4096x4096xf32>
}
