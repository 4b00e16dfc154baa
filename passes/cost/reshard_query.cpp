#include "cost/reshard_query.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "cost/reshard_steps.h"

namespace autoshard {
namespace {

/// The axes, or their primes if there are at most `max_parts`.
struct Parts {
  std::vector<std::int64_t> sizes;
  /// The parts of each axis, major first.
  std::vector<AxisList> of_axis;
};

Parts parts_of(const Mesh& mesh) {
  Parts primes, whole;
  for (std::int64_t size : mesh.axis_sizes) {
    whole.of_axis.push_back({static_cast<AxisIndex>(whole.sizes.size())});
    whole.sizes.push_back(size);
    primes.of_axis.emplace_back();
    for (std::int64_t divisor = 2; size > 1; ++divisor) {
      for (; size % divisor == 0; size /= divisor) {
        primes.of_axis.back().push_back(static_cast<AxisIndex>(primes.sizes.size()));
        primes.sizes.push_back(divisor);
      }
    }
  }
  return static_cast<int>(primes.sizes.size()) <= max_parts ? primes : whole;
}

/// Those of the mesh that was asked for last are kept.
const Parts& kept_parts_of(const Mesh& mesh) {
  thread_local std::vector<std::int64_t> sizes;
  thread_local Parts parts;
  if (sizes != mesh.axis_sizes) {
    parts = parts_of(mesh);
    sizes = mesh.axis_sizes;
  }
  return parts;
}

/// Over all parts of a small mesh. Dims that neither sharding cuts take no part.
ReshardQuery query_of_mesh(const std::vector<std::int64_t>& dims, const Sharding& from,
                           const Sharding& to, const Mesh& mesh) {
  const Parts& parts = kept_parts_of(mesh);
  ReshardQuery q;
  std::int64_t devices = 1;
  for (std::size_t axis = 0; axis < parts.of_axis.size(); ++axis) {
    for (AxisIndex part : parts.of_axis[axis]) {
      q.sizes.push_back(parts.sizes[part]);
      q.axes.push_back(1u << axis);
      devices *= parts.sizes[part];
    }
  }
  const auto split = [&](const AxisList& axes, ReshardState& state) {
    for (AxisIndex axis : axes) {
      for (AxisIndex part : parts.of_axis[axis]) state.push(state.rank - 1u, part);
    }
  };
  for (std::size_t d = 0; d < dims.size(); ++d) {
    if (from.dims[d].empty() && to.dims[d].empty()) continue;
    q.add_dim(std::gcd(dims[d], devices));
    split(from.dims[d], q.start);
    split(to.dims[d], q.goal);
  }
  return q;
}

/// Over the axes that move, numbered as they come in `from`, then in `to`, so that moves of
/// one pattern share a search. None if there are too many.
std::optional<ReshardQuery> query_of_moves(const std::vector<std::int64_t>& dims,
                                           const Sharding& from, const Sharding& to,
                                           const Mesh& mesh) {
  ReshardQuery q;
  std::array<AxisIndex, max_mesh_axes> part_of;
  part_of.fill(max_mesh_axes);
  for (const auto& [one, other] : {std::pair(&from, &to), std::pair(&to, &from)}) {
    for (std::size_t d = 0; d < dims.size(); ++d) {
      const AxisList& axes = one->dims[d];
      for (std::size_t k = common_prefix(axes, other->dims[d]); k < axes.size(); ++k) {
        if (part_of[axes[k]] != max_mesh_axes) continue;
        if (q.sizes.size() == max_moving) return std::nullopt;
        part_of[axes[k]] = static_cast<AxisIndex>(q.sizes.size());
        q.sizes.push_back(mesh.axis_sizes[axes[k]]);
        q.axes.push_back(1u << axes[k]);
      }
    }
  }
  const std::int64_t devices =
      std::accumulate(q.sizes.begin(), q.sizes.end(), std::int64_t{1}, std::multiplies<>());
  std::int64_t stay = 1;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    const std::size_t prefix = common_prefix(from.dims[d], to.dims[d]);
    std::int64_t blocks = 1;
    for (std::size_t k = 0; k < prefix; ++k) blocks *= mesh.axis_sizes[from.dims[d][k]];
    stay *= blocks;
    if (from.dims[d].size() == prefix && to.dims[d].size() == prefix) continue;
    q.add_dim(std::gcd(dims[d] / blocks, devices));
    for (const auto& [axes, state] :
         {std::pair(&from.dims[d], &q.start), std::pair(&to.dims[d], &q.goal)}) {
      for (std::size_t k = prefix; k < axes->size(); ++k) {
        state->push(state->rank - 1u, part_of[(*axes)[k]]);
      }
    }
  }
  q.whole = 1.0 / static_cast<double>(stay);
  return q;
}

/// The most blocks that parts of these sizes can make of a dim of `capacity`, in the sense
/// that the same products divide both.
std::int64_t blocks_of(std::int64_t capacity,
                       const ShortList<std::int64_t, max_moving>& sizes) {
  std::int64_t result = 1;
  for (std::size_t set = 1; set < std::size_t{1} << sizes.size(); ++set) {
    std::int64_t product = 1;
    for (std::size_t part = 0; part < sizes.size(); ++part) {
      if (set >> part & 1u) product *= sizes.items[part];
    }
    if (capacity % product == 0) result = std::lcm(result, product);
  }
  return result;
}

/// The same query with its dims in an order that does not depend on theirs: steps do not say
/// which dim they change, so that one search answers for all orders.
ReshardQuery in_common_order(const ReshardQuery& q) {
  std::array<std::uint8_t, ReshardState::max_dims> order;
  std::array<std::uint64_t, ReshardState::max_dims> code;
  std::array<std::int64_t, ReshardState::max_dims> capacity;
  for (std::uint8_t d = 0; d < q.start.rank; ++d) {
    order[d] = d;
    // Dims that are cut come first.
    code[d] = q.start.length[d] == 0 ? 0xffff : 0;
    for (std::size_t k = 0; k < q.start.length[d]; ++k) {
      code[d] = code[d] << 4 | q.start.parts[d][k];
    }
    capacity[d] = blocks_of(q.capacity.items[d], q.sizes);
  }
  std::stable_sort(order.begin(), order.begin() + q.start.rank, [&](int one, int other) {
    return std::pair(code[one], capacity[one]) < std::pair(code[other], capacity[other]);
  });
  ReshardQuery sorted = q;
  for (std::size_t d = 0; d < q.start.rank; ++d) {
    sorted.start.parts[d] = q.start.parts[order[d]];
    sorted.start.length[d] = q.start.length[order[d]];
    sorted.goal.parts[d] = q.goal.parts[order[d]];
    sorted.goal.length[d] = q.goal.length[order[d]];
    sorted.capacity.items[d] = capacity[order[d]];
  }
  return sorted;
}

}  // namespace

std::optional<ReshardQuery> reshard_query(const std::vector<std::int64_t>& dims,
                                          const Sharding& from, const Sharding& to,
                                          const Mesh& mesh) {
  std::optional<ReshardQuery> q = mesh.rank() <= max_parts
                                      ? query_of_mesh(dims, from, to, mesh)
                                      : query_of_moves(dims, from, to, mesh);
  if (!q) return q;
  q->has_all_to_all = mesh.has_all_to_all;
  return in_common_order(*q);
}

}  // namespace autoshard
