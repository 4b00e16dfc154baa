#include "planning/steps.h"

namespace autoshard::planning {
namespace {

/// Part of a kernel's launch that a slice costs. Of a tensor that is read whole in this time
/// no slice is taken.
constexpr double slice_share = 0.05;

}  // namespace

double slice_seconds(const std::vector<Step>& steps, const Sharding& from, const Sharding& to,
                     AxisMask partial, const Cluster& cluster) {
  const bool is_slice = steps.empty() && partial == 0 && from != to;
  return is_slice ? slice_share * cluster.chip.launch_seconds : 0;
}

double pass_seconds(const Cluster& cluster) {
  return 1 / (cluster.chip.memory_bandwidth * cluster.chip.memory_efficiency);
}

double stored_slice_seconds(const Cluster& cluster) { return 2 * pass_seconds(cluster); }

double seconds_of(const std::vector<Step>& steps, const Cluster& cluster, const Mesh& mesh) {
  double total = 0;
  for (const Step& step : steps) {
    total += compiled_seconds(step, cluster, mesh);
  }
  return total;
}

Step halo_step(const Halo& halo, const Mesh& mesh) {
  AxisList axes;
  for (int axis = 0; axis < mesh.rank(); ++axis) {
    if ((halo.axes >> axis) & 1u) axes.push_back(static_cast<AxisIndex>(axis));
  }
  return {CollectiveKind::permute, halo.axes, num_shards(axes, mesh), halo.bytes};
}

std::vector<Step> scalar_steps(const Mesh& mesh, AxisMask partial) {
  return reshard_steps(scalar_type, {}, {}, partial, mesh);
}

}  // namespace autoshard::planning
