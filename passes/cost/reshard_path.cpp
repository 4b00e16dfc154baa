#include "cost/reshard_path.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <utility>

#include "cost/reshard_query.h"
#include "cost/reshard_search.h"
#include "cost/reshard_steps.h"

namespace autoshard {
namespace {

/// The path where there is nothing to search, with the held bytes of a tensor of one byte. No
/// device can receive less than it misses of its block in the end, and these receive just
/// that:
///
///   axes that come are free           they cut, then each dim gathers those that go
///   the axes that go come in another  the others that come cut, and one all-to-all moves
///   dim, in one piece                 these; a dim that takes them is not cut besides
///
/// Nothing if it is neither.
std::optional<std::vector<Step>> direct_steps(const Sharding& from, const Sharding& to,
                                              const Mesh& mesh) {
  AxisMask gone = 0, come = 0;
  std::size_t givers = 0, giver = 0, taker = 0;
  const auto tail = [](const AxisList& axes, std::size_t first) {
    AxisMask set = 0;
    for (std::size_t k = first; k < axes.size(); ++k) set |= 1u << axes[k];
    return set;
  };
  for (std::size_t d = 0; d < from.dims.size(); ++d) {
    const std::size_t prefix = common_prefix(from.dims[d], to.dims[d]);
    const bool gives = prefix < from.dims[d].size(), takes = prefix < to.dims[d].size();
    if (gives && takes) return std::nullopt;
    if (gives) {
      gone |= tail(from.dims[d], prefix);
      giver = d;
      ++givers;
    } else if (takes) {
      come |= tail(to.dims[d], prefix);
    }
  }
  const double held = 1.0 / static_cast<double>(num_shards(from, mesh));
  const AxisMask cuts = come & ~gone;
  double left = held / static_cast<double>(devices_along(cuts, mesh));
  std::vector<Step> steps;
  if ((gone & come) == 0) {
    steps.reserve(givers);
    for (std::size_t d = 0; givers > 0 && d < from.dims.size(); ++d) {
      const AxisMask axes = tail(from.dims[d], common_prefix(from.dims[d], to.dims[d]));
      if (axes == 0) continue;
      steps.push_back({CollectiveKind::all_gather, axes, devices_along(axes, mesh), left});
      left *= static_cast<double>(steps.back().participants);
    }
    return steps;
  }
  if (givers != 1 || !mesh.has_all_to_all) return std::nullopt;
  const AxisList& given = from.dims[giver];
  const std::size_t kept = to.dims[giver].size();
  while ((tail(to.dims[taker], from.dims[taker].size()) & gone) == 0) ++taker;
  const AxisList& taken = to.dims[taker];
  const std::size_t had = from.dims[taker].size();
  if (taken.size() - had != given.size() - kept ||
      !std::equal(taken.begin() + had, taken.end(), given.begin() + kept)) {
    return std::nullopt;
  }
  steps.push_back({CollectiveKind::all_to_all, gone, devices_along(gone, mesh), left});
  return steps;
}

}  // namespace

PathCost cheapest_path(const std::vector<std::int64_t>& dims, const Sharding& from,
                       const Sharding& to, const Mesh& mesh) {
  PathCost cost;
  const auto add = [&cost](const std::vector<Step>& steps) {
    for (const Step& step : steps) {
      cost.volume += step.sent_bytes();
      ++cost.collectives;
    }
    return cost;
  };
  if (const auto direct = direct_steps(from, to, mesh)) return add(*direct);
  if (const auto q = reshard_query(dims, from, to, mesh)) {
    cost = reshard_searches().cost(*q);
    cost.volume *= q->whole;
    return cost;
  }
  return add(steps_in_order(dims, from, to, mesh, 1.0));
}

std::vector<Step> steps_of_cheapest_path(const std::vector<std::int64_t>& dims,
                                         const Sharding& from, const Sharding& to,
                                         const Mesh& mesh, double bytes) {
  if (auto direct = direct_steps(from, to, mesh)) {
    for (Step& step : *direct) step.held_bytes *= bytes;
    sort_gathers(*direct);
    return *std::move(direct);
  }
  const auto q = reshard_query(dims, from, to, mesh);
  if (!q) return steps_in_order(dims, from, to, mesh, bytes);
  std::vector<Step> steps = reshard_searches().steps(*q);
  for (Step& step : steps) {
    AxisMask axes = 0;
    for (std::size_t part = 0; part < q->axes.size(); ++part) {
      if (step.axes >> part & 1u) axes |= q->axes.items[part];
    }
    step.axes = axes;
    step.held_bytes *= q->whole * bytes;
  }
  sort_gathers(steps);
  return steps;
}

std::vector<Sharding> reshard_path(const std::vector<std::int64_t>& dims, const Sharding& from,
                                   const Sharding& to, const Mesh& mesh) {
  if (mesh.axis_sizes.size() > max_moving || dims.size() > ReshardState::max_dims ||
      from.dims.size() != dims.size() || to.dims.size() != dims.size()) {
    throw std::invalid_argument("reshard_path: too many axes or dims, or ranks differ");
  }
  const auto state_of = [&](const Sharding& sharding) {
    ReshardState state;
    AxisMask used = 0;
    for (const AxisList& axes : sharding.dims) {
      state.add_dim();
      for (AxisIndex axis : axes) {
        if (axis >= mesh.rank() || (used >> axis & 1u)) {
          throw std::invalid_argument("reshard_path: unknown axis, or one that cuts twice");
        }
        used |= 1u << axis;
        state.push(state.rank - 1u, axis);
      }
    }
    return state;
  };
  ReshardSearch search(state_of(from), dims, mesh.axis_sizes, mesh.has_all_to_all, true);
  std::vector<Sharding> path;
  for (const ReshardState& state : search.states_to(state_of(to))) {
    Sharding& sharding = path.emplace_back();
    for (std::size_t d = 0; d < state.rank; ++d) {
      const auto& axes = state.parts[d];
      sharding.dims.emplace_back(axes.begin(), axes.begin() + state.length[d]);
    }
  }
  return path;
}

}  // namespace autoshard
