#include "cost/reshard.h"

#include <algorithm>
#include <array>

#include "cost/reshard_path.h"
#include "cost/reshard_steps.h"

namespace autoshard {
namespace {

constexpr std::int8_t nowhere = -1;

/// Partial sums over `partial`, in a tensor that `from` cuts, into `to`, which only cuts it
/// further. Calls `take` with each step.
template <typename Take>
void reduce(const TensorType& type, const Sharding& from, const Sharding& to, AxisMask partial,
            const Mesh& mesh, const Take& take) {
  std::array<std::int8_t, max_mesh_axes> target;
  target.fill(nowhere);
  for (std::size_t d = 0; d < to.dims.size(); ++d) {
    for (std::size_t k = from.dims[d].size(); k < to.dims[d].size(); ++k) {
      target[to.dims[d][k]] = static_cast<std::int8_t>(d);
    }
  }
  double held = type.bytes() / static_cast<double>(num_shards(from, mesh));
  AxisMask reduced = 0, scattered = 0;
  for (int axis = 0; axis < mesh.rank(); ++axis) {
    const AxisMask bit = 1u << axis;
    const bool arrives = target[axis] != nowhere;
    if (partial & bit) {
      (arrives ? scattered : reduced) |= bit;
    } else if (arrives) {
      held /= static_cast<double>(mesh.axis_sizes[axis]);
    }
  }
  while (scattered != 0) {
    const int first = __builtin_ctz(scattered);
    AxisMask axes = 0;
    for (int axis = first; axis < mesh.rank(); ++axis) {
      if ((scattered >> axis & 1u) && target[axis] == target[first]) axes |= 1u << axis;
    }
    scattered &= ~axes;
    const std::int64_t n = devices_along(axes, mesh);
    take(Step{CollectiveKind::reduce_scatter, axes, n, held});
    held /= static_cast<double>(n);
  }
  if (reduced != 0) {
    take(Step{CollectiveKind::all_reduce, reduced, devices_along(reduced, mesh), held});
  }
}

/// The partial sums of a reshard. True if that is all of it.
template <typename Take>
bool reduce_first(const TensorType& type, const Sharding& from, const Sharding& to,
                  AxisMask partial, const Mesh& mesh, const Take& take) {
  if (partial == 0) return from == to;
  if (is_scattered(from, to, partial)) {
    reduce(type, from, to, partial, mesh, take);
    return true;
  }
  reduce(type, from, from, partial, mesh, take);
  return from == to;
}

/// How the dims that `sharding` cuts along `axes` lie among those of which a device has more
/// than one element: before all others, as the columns of a matrix, or behind others.
enum class Place : std::uint8_t { first, columns, behind };

Place place_of(const TensorType& type, const Sharding& sharding, AxisMask axes,
               const Mesh& mesh) {
  bool is_cut = false;
  int num_before = 0;
  for (std::size_t d = 0; d < sharding.dims.size(); ++d) {
    const AxisList& cut = sharding.dims[d];
    if (std::any_of(cut.begin(), cut.end(), [axes](AxisIndex a) { return axes >> a & 1u; })) {
      is_cut = true;
    } else if (type.dims[d] > num_shards(cut, mesh)) {
      if (is_cut) return num_before > 0 ? Place::behind : Place::first;
      ++num_before;
    }
  }
  if (num_before == 0) return Place::first;
  return num_before == 1 ? Place::columns : Place::behind;
}

/// What each step transposes. Of columns that are gathered or scattered, as matmuls read and
/// write a matrix in either layout, the part of a device; behind other dims, as in stacks that
/// loops read slice by slice, the whole. An all-to-all takes blocks of one dim and puts them
/// behind each other in another: all that a device holds, once or for each of the two dims.
void add_transposed(const TensorType& type, const Sharding& from, const Sharding& to,
                    const Mesh& mesh, std::vector<Step>& steps) {
  for (Step& step : steps) {
    if (step.kind == CollectiveKind::all_to_all) {
      step.transposed_bytes = 2 * step.held_bytes;
      for (const Sharding* side : {&from, &to}) {
        if (place_of(type, *side, step.axes, mesh) != Place::first) ++step.inner_dims;
      }
      const auto bits = static_cast<double>(type.element_bits);
      step.narrow_elements = bits < 32 ? step.held_bytes * 8 / bits : 0;
    }
    const bool gathers = step.kind == CollectiveKind::all_gather;
    if (!gathers && step.kind != CollectiveKind::reduce_scatter) continue;
    const Place place = place_of(type, gathers ? from : to, step.axes, mesh);
    if (place == Place::first) continue;
    const auto n = static_cast<double>(step.participants);
    const double part = gathers ? step.held_bytes : step.held_bytes / n;
    step.transposed_bytes = 2 * (place == Place::behind ? part * n : part);
  }
}

}  // namespace

Reshard reshard(const TensorType& type, const Sharding& from, const Sharding& to,
                AxisMask partial, const Mesh& mesh) {
  Reshard result;
  if (reduce_first(type, from, to, partial, mesh, [&result](const Step& step) {
        result.bytes += step.sent_bytes();
        ++result.collectives;
      })) {
    return result;
  }
  const PathCost path = cheapest_path(type.dims, from, to, mesh);
  result.bytes += path.volume * type.bytes();
  result.collectives += path.collectives;
  return result;
}

std::vector<Step> reshard_steps(const TensorType& type, const Sharding& from,
                                const Sharding& to, AxisMask partial, const Mesh& mesh) {
  std::vector<Step> steps;
  const bool is_all = reduce_first(type, from, to, partial, mesh,
                                   [&steps](const Step& step) { steps.push_back(step); });
  if (!is_all) {
    std::vector<Step> rest = steps_of_cheapest_path(type.dims, from, to, mesh, type.bytes());
    if (steps.empty()) {
      steps = std::move(rest);
    } else {
      steps.insert(steps.end(), rest.begin(), rest.end());
    }
  }
  add_transposed(type, from, to, mesh, steps);
  return steps;
}

double reshard_seconds(const TensorType& type, const Sharding& from, const Sharding& to,
                       AxisMask partial, const Mesh& mesh, const Cluster& cluster) {
  double total = 0;
  for (const Step& step : reshard_steps(type, from, to, partial, mesh)) {
    total += seconds(step, cluster, mesh);
  }
  return total;
}

}  // namespace autoshard
