#include "cost/redistribution.h"

#include <algorithm>
#include <array>

#include "cost/ways.h"

namespace autoshard {
namespace {

constexpr std::int8_t nowhere = -1;

/// All steps in one fixed order.
Redistribution in_order(const TensorType& type, const Sharding& from, const Sharding& to,
                        AxisMask partial, const Mesh& mesh) {
  Redistribution result;

  // Per dim, axes behind the common prefix leave (`source`) or arrive (`target`).
  std::array<std::int8_t, max_mesh_axes> source, target;
  source.fill(nowhere);
  target.fill(nowhere);
  const int rank = static_cast<int>(from.dims.size());
  for (int d = 0; d < rank; ++d) {
    const AxisList& before = from.dims[d];
    const AxisList& after = to.dims[d];
    std::size_t prefix = 0;
    while (prefix < before.size() && prefix < after.size() &&
           before[prefix] == after[prefix]) {
      ++prefix;
    }
    for (std::size_t k = prefix; k < before.size(); ++k) source[before[k]] = d;
    for (std::size_t k = prefix; k < after.size(); ++k) target[after[k]] = d;
  }

  double held = type.bytes() / static_cast<double>(num_shards(from, mesh));
  double scattered = 1, reduced = 1, gathered = 1;
  std::uint64_t scatter_dims = 0, gather_dims = 0;
  bool permuted = false;
  for (int axis = 0; axis < mesh.rank(); ++axis) {
    const auto size = static_cast<double>(mesh.axis_sizes[axis]);
    const bool is_partial = (partial >> axis) & 1u;
    const bool arrives = target[axis] != nowhere, leaves = source[axis] != nowhere;
    if (is_partial) {
      if (arrives) {
        scattered *= size;
        scatter_dims |= 1ull << target[axis];
      } else {
        reduced *= size;
      }
    } else if (arrives && !leaves) {
      held /= size;
    } else if (leaves && !arrives) {
      gathered *= size;
      gather_dims |= 1ull << source[axis];
    } else if (arrives && leaves && source[axis] == target[axis]) {
      permuted = true;
    }
  }
  for (int axis = 0; axis < mesh.rank(); ++axis) {
    if (target[axis] != nowhere && source[axis] == nowhere &&
        ((gather_dims >> target[axis]) & 1u)) {
      permuted = true;
    }
  }
  if (scattered > 1) {
    result.bytes += (scattered - 1) / scattered * held;
    result.collectives += __builtin_popcountll(scatter_dims);
    held /= scattered;
  }
  if (reduced > 1) {
    result.bytes += 2 * (reduced - 1) / reduced * held;
    result.collectives += 1;
  }
  // All-to-all, one per pair of dims.
  std::uint32_t moved = 0;
  for (int axis = 0; axis < mesh.rank(); ++axis) {
    if (source[axis] != nowhere && target[axis] != nowhere && source[axis] != target[axis]) {
      moved |= 1u << axis;
    }
  }
  while (moved != 0) {
    const int first = __builtin_ctz(moved);
    double n = 1;
    for (int axis = first; axis < mesh.rank(); ++axis) {
      if (((moved >> axis) & 1u) && source[axis] == source[first] &&
          target[axis] == target[first]) {
        n *= static_cast<double>(mesh.axis_sizes[axis]);
        moved &= ~(1u << axis);
      }
    }
    result.bytes += (n - 1) / n * held;
    result.collectives += 1;
  }
  if (permuted) {
    result.bytes += held;
    result.collectives += 1;
  }
  if (gathered > 1) {
    result.bytes += (gathered - 1) * held;
    result.collectives += __builtin_popcountll(gather_dims);
  }
  return result;
}

}  // namespace

Redistribution redistribution(const TensorType& type, const Sharding& from, const Sharding& to,
                              AxisMask partial, const Mesh& mesh, bool may_scatter) {
  if (partial != 0) {
    if (may_scatter && only_cuts(from, to)) return in_order(type, from, to, partial, mesh);
    Redistribution result = in_order(type, from, from, partial, mesh);
    const Redistribution rest = redistribution(type, from, to, 0, mesh);
    result.bytes += rest.bytes;
    result.collectives += rest.collectives;
    return result;
  }
  if (from == to) return {};
  if (!has_ways(mesh)) return in_order(type, from, to, 0, mesh);
  const Way way = cheapest_way(type.dims, from, to, mesh);
  return {way.volume * type.bytes(), way.collectives};
}

}  // namespace autoshard
