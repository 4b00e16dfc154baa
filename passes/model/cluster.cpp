#include "model/cluster.h"

#include <algorithm>
#include <cmath>

namespace autoshard {
namespace {

[[noreturn]] void fail(const std::string& what) { throw InvalidCluster("cluster: " + what); }

void check_positive(double value, const char* name) {
  if (std::isfinite(value) && value > 0) return;
  fail(std::string(name) + " is " + std::to_string(value) + "; a positive number is needed");
}

void check_share(double value, const char* name) {
  if (value > 0 && value <= 1) return;
  fail(std::string(name) + " is " + std::to_string(value) +
       "; a share above 0 and at most 1 is needed");
}

void check_seconds(double value, const char* name) {
  if (std::isfinite(value) && value >= 0) return;
  fail(std::string(name) + " is " + std::to_string(value) + " seconds; 0 or more are needed");
}

void check(const Chip& chip) {
  for (double flops : chip.matmul_flops) check_positive(flops, "a rate of matmul_flops");
  check_positive(chip.vector_flops, "vector_flops");
  check_positive(chip.exponentials, "exponentials");
  check_positive(chip.memory_bytes, "memory_bytes");
  check_positive(chip.memory_bandwidth, "memory_bandwidth");
  check_positive(static_cast<double>(chip.tile_rows), "tile_rows");
  check_positive(static_cast<double>(chip.tile_columns), "tile_columns");
  check_share(chip.matmul_efficiency, "matmul_efficiency");
  check_share(chip.attention_gradient_efficiency, "attention_gradient_efficiency");
  check_share(chip.memory_efficiency, "memory_efficiency");
  check_seconds(chip.launch_seconds, "launch_seconds");
}

std::string dim_name(std::size_t d) { return "dim " + std::to_string(d); }

}  // namespace

bool has_torus(const Cluster& cluster) {
  return std::any_of(cluster.dims.begin(), cluster.dims.end(), [](const PhysicalDim& dim) {
    return dim.kind == LinkKind::ring || dim.kind == LinkKind::line;
  });
}

Mesh covered_mesh(const Cluster& cluster) {
  Mesh mesh;
  for (const std::vector<AxisPart>& parts : cluster.axes) {
    std::int64_t size = 1;
    for (const AxisPart& part : parts) size *= part.size;
    mesh.axis_sizes.push_back(size);
  }
  return mesh;
}

void check(const Cluster& cluster, const Mesh& mesh) {
  check(cluster.chip);
  // Negated, so that NaN fails too.
  if (!(cluster.chip.overlap_slowdown >= 1)) {
    fail("overlap_slowdown is " + std::to_string(cluster.chip.overlap_slowdown) +
         "; 1 or more is needed");
  }
  if (!(cluster.overlap >= 0 && cluster.overlap <= 1)) {
    fail("overlap is " + std::to_string(cluster.overlap) + "; a share from 0 to 1 is needed");
  }
  check_positive(cluster.corrections.products, "the correction of products");
  check_positive(cluster.corrections.others, "the correction of other ops");
  for (std::size_t d = 0; d < cluster.dims.size(); ++d) {
    const PhysicalDim& dim = cluster.dims[d];
    if (dim.size < 2) {
      fail(dim_name(d) + " has size " + std::to_string(dim.size) + "; leave out dims below 2");
    }
    check_positive(dim.bandwidth, (dim_name(d) + " bandwidth").c_str());
    check_seconds(dim.latency, (dim_name(d) + " latency").c_str());
  }
  if (cluster.axes.size() != mesh.axis_sizes.size()) {
    fail("it covers " + std::to_string(cluster.axes.size()) + " axes, but the mesh has " +
         std::to_string(mesh.axis_sizes.size()));
  }
  std::vector<std::int64_t> covered(cluster.dims.size(), 1);
  for (std::size_t a = 0; a < cluster.axes.size(); ++a) {
    std::int64_t size = 1;
    for (const AxisPart& part : cluster.axes[a]) {
      if (part.dim < 0 || part.dim >= static_cast<std::int32_t>(covered.size())) {
        fail("axis " + std::to_string(a) + " covers " + dim_name(part.dim) +
             ", which does not exist");
      }
      if (part.size < 2) {
        fail("axis " + std::to_string(a) + " covers a part of size " +
             std::to_string(part.size) + "; leave out parts below 2");
      }
      covered[part.dim] *= part.size;
      size *= part.size;
    }
    if (size != mesh.axis_sizes[a]) {
      fail("the parts of axis " + std::to_string(a) + " multiply to " + std::to_string(size) +
           ", but its size is " + std::to_string(mesh.axis_sizes[a]));
    }
  }
  for (std::size_t d = 0; d < covered.size(); ++d) {
    if (covered[d] != cluster.dims[d].size) {
      fail("the axes cover " + std::to_string(covered[d]) + " of the " +
           std::to_string(cluster.dims[d].size) + " of " + dim_name(d));
    }
  }
}

}  // namespace autoshard
