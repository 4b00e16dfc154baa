#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cost/reshard_path.h"
#include "cost/reshard_steps.h"

namespace autoshard {
namespace {

/// The parts of both shardings that are not where they were.
AxisMask moved_parts(const Sharding& before, const Sharding& after) {
  AxisMask moved = 0;
  for (std::size_t d = 0; d < before.dims.size(); ++d) {
    const AxisList &old_axes = before.dims[d], &new_axes = after.dims[d];
    std::size_t stays = 0;
    while (stays < std::min(old_axes.size(), new_axes.size()) &&
           old_axes[stays] == new_axes[stays]) {
      ++stays;
    }
    for (std::size_t k = stays; k < old_axes.size(); ++k) moved |= 1u << old_axes[k];
    for (std::size_t k = stays; k < new_axes.size(); ++k) moved |= 1u << new_axes[k];
  }
  return moved;
}

/// A path by rules, step by step.
class PathByRules {
 public:
  /// `cuts_first`: any free axis before the first move.
  PathByRules(const std::vector<std::int64_t>& dims, Sharding from, const Sharding& to,
              const Mesh& mesh, bool cuts_first)
      : now(std::move(from)), dims_(dims), to_(to), mesh_(mesh), cuts_first_(cuts_first) {}

  /// False at the end. A cut is no step of its own.
  bool advance() {
    while (cut(true) || (cuts_first_ && cut(false))) {
    }
    if (now == to_) return false;
    if (move()) return true;
    while (cut(false)) {
    }
    if (!move_some() && !permute()) gather();
    return true;
  }

  Sharding now;
  std::vector<Step> steps;

 private:
  std::size_t stays(std::size_t d) const { return common_prefix(now.dims[d], to_.dims[d]); }
  std::int64_t have(std::size_t d) const { return num_shards(now.dims[d], mesh_); }
  std::int64_t need(std::size_t d) const { return num_shards(to_.dims[d], mesh_); }

  AxisMask used() const {
    AxisMask result = 0;
    for (const AxisList& axes : now.dims) result |= mask(axes, 0);
    return result;
  }

  static AxisMask mask(const AxisList& axes, std::size_t first) {
    AxisMask result = 0;
    for (std::size_t k = first; k < axes.size(); ++k) result |= 1u << axes[k];
    return result;
  }

  void add(CollectiveKind kind, AxisMask axes) {
    steps.push_back({kind, axes, devices_along(axes, mesh_),
                     1.0 / static_cast<double>(num_shards(now, mesh_))});
  }

  /// With the axis that comes next, or with any that will; not that, though, once a gather has
  /// taken such axes away again.
  bool cut(bool in_place) {
    if (!in_place && has_gathered_) return false;
    const AxisMask taken = used();
    for (std::size_t d = 0; d < now.dims.size(); ++d) {
      const std::size_t stay = stays(d);
      if (in_place && stay < now.dims[d].size()) continue;
      for (std::size_t k = stay; k < to_.dims[d].size(); ++k) {
        const AxisIndex axis = to_.dims[d][k];
        const bool is_free = !(taken >> axis & 1u);
        if (is_free && dims_[d] % (have(d) * mesh_.axis_sizes[axis]) == 0) {
          now.dims[d].push_back(axis);
          return true;
        }
        if (in_place) break;
      }
    }
    return false;
  }

  void all_to_all(std::size_t giver, std::size_t taker, std::size_t count) {
    AxisList &given = now.dims[giver], &taken = now.dims[taker];
    add(CollectiveKind::all_to_all, mask(given, given.size() - count));
    taken.append(given.end() - static_cast<std::ptrdiff_t>(count), given.end());
    given.shorten(given.size() - count);
  }

  /// The minor axes of a dim that come next in another one.
  bool move() {
    std::size_t best = 0, giver = 0, taker = 0;
    for (std::size_t t = 0; t < now.dims.size(); ++t) {
      if (stays(t) < now.dims[t].size()) continue;
      const AxisList& wanted = to_.dims[t];
      for (std::size_t g = 0; g < now.dims.size(); ++g) {
        const AxisList& given = now.dims[g];
        for (std::size_t n = best + 1;
             g != t && n <= given.size() - stays(g) && n <= wanted.size() - now.dims[t].size();
             ++n) {
          if (std::equal(given.end() - static_cast<std::ptrdiff_t>(n), given.end(),
                         wanted.begin() + static_cast<std::ptrdiff_t>(now.dims[t].size()))) {
            best = n;
            giver = g;
            taker = t;
          }
        }
      }
    }
    if (best == 0) return false;
    all_to_all(giver, taker, best);
    return true;
  }

  /// The minor axes of a dim with too many blocks, to one with too few.
  bool move_some() {
    std::int64_t best = 1;
    std::size_t giver = 0, taker = 0, count = 0;
    for (std::size_t t = 0; t < now.dims.size(); ++t) {
      const std::int64_t missing = need(t) / std::gcd(need(t), have(t));
      for (std::size_t g = 0; g < now.dims.size(); ++g) {
        const std::int64_t spare = have(g) / std::gcd(need(g), have(g));
        const AxisList& given = now.dims[g];
        std::int64_t pieces = 1;
        for (std::size_t n = 1; g != t && n <= given.size() - stays(g); ++n) {
          pieces *= mesh_.axis_sizes[given[given.size() - n]];
          if (pieces > best && missing % pieces == 0 && spare % pieces == 0 &&
              dims_[t] % (have(t) * pieces) == 0) {
            best = pieces;
            giver = g;
            taker = t;
            count = n;
          }
        }
      }
    }
    if (best == 1) return false;
    all_to_all(giver, taker, count);
    return true;
  }

  /// As many first axes of every dim as its blocks allow, the other blocks by other axes.
  bool permute() {
    Sharding next;
    AxisMask placed = 0;
    std::size_t stay = 0, placed_count = 0;
    for (std::size_t d = 0; d < now.dims.size(); ++d) {
      stay += stays(d);
      next.dims.emplace_back();
      std::int64_t blocks = have(d);
      for (AxisIndex axis : to_.dims[d]) {
        if (blocks % mesh_.axis_sizes[axis] != 0) break;
        blocks /= mesh_.axis_sizes[axis];
        next.dims[d].push_back(axis);
        placed |= 1u << axis;
        ++placed_count;
      }
    }
    if (placed_count <= stay || !fill(next, 0, used() & ~placed)) return false;
    add(CollectiveKind::permute, moved_parts(now, next));
    now = std::move(next);
    return true;
  }

  /// From dim `d` on, `next` gets as many blocks as there are now, with axes out of `free`.
  bool fill(Sharding& next, std::size_t d, AxisMask free) const {
    if (d == next.dims.size()) return true;
    const std::int64_t missing = have(d) / num_shards(next.dims[d], mesh_);
    if (missing == 1) return fill(next, d + 1, free);
    for (int axis = 0; axis < mesh_.rank(); ++axis) {
      if (!(free >> axis & 1u) || missing % mesh_.axis_sizes[axis] != 0) continue;
      next.dims[d].push_back(static_cast<AxisIndex>(axis));
      if (fill(next, d, free & ~(1u << axis))) return true;
      next.dims[d].pop_back();
    }
    return false;
  }

  /// One minor axis that is not where it belongs: the smallest of those that `to` does not
  /// have, else of all.
  void gather() {
    AxisMask wanted = 0;
    for (const AxisList& axes : to_.dims) wanted |= mask(axes, 0);
    std::pair<bool, std::int64_t> best = {true, 0};
    std::size_t dim = now.dims.size();
    for (std::size_t d = 0; d < now.dims.size(); ++d) {
      if (stays(d) == now.dims[d].size()) continue;
      const AxisIndex axis = now.dims[d].back();
      const std::pair<bool, std::int64_t> rank = {wanted >> axis & 1u, mesh_.axis_sizes[axis]};
      if (dim == now.dims.size() || rank < best) {
        best = rank;
        dim = d;
      }
    }
    if (dim == now.dims.size()) throw std::logic_error("reshard: nothing to gather");
    const AxisIndex axis = now.dims[dim].back();
    if (!steps.empty() && steps.back().kind == CollectiveKind::all_gather &&
        gathered_dim_ == dim) {
      steps.back().axes |= 1u << axis;
      steps.back().participants *= mesh_.axis_sizes[axis];
    } else {
      add(CollectiveKind::all_gather, 1u << axis);
    }
    now.dims[dim].pop_back();
    has_gathered_ = true;
    gathered_dim_ = dim;
  }

  const std::vector<std::int64_t>& dims_;
  const Sharding& to_;
  const Mesh& mesh_;
  bool cuts_first_;
  bool has_gathered_ = false;
  std::size_t gathered_dim_ = 0;
};

/// Gathers all that moves; what is left is cut.
std::vector<Step> gathers(const Sharding& from, const Sharding& to, const Mesh& mesh) {
  std::vector<Step> steps;
  Sharding now = from;
  for (std::size_t d = 0; d < now.dims.size(); ++d) {
    const std::size_t prefix = common_prefix(now.dims[d], to.dims[d]);
    if (prefix == now.dims[d].size()) continue;
    AxisMask axes = 0;
    for (std::size_t k = prefix; k < now.dims[d].size(); ++k) axes |= 1u << now.dims[d][k];
    steps.push_back({CollectiveKind::all_gather, axes, devices_along(axes, mesh),
                     1.0 / static_cast<double>(num_shards(now, mesh))});
    now.dims[d].shorten(prefix);
  }
  return steps;
}

}  // namespace

std::vector<Step> steps_in_order(const std::vector<std::int64_t>& dims, const Sharding& from,
                                 const Sharding& to, const Mesh& mesh, double bytes) {
  const auto path = [&](bool cuts_first) {
    PathByRules by_rules(dims, from, to, mesh, cuts_first);
    while (by_rules.advance()) {
    }
    return std::move(by_rules.steps);
  };
  const auto volume = [](const std::vector<Step>& steps) {
    double sum = 0;
    for (const Step& step : steps) sum += step.sent_bytes();
    return sum;
  };
  std::vector<Step> steps;
  if (mesh.has_all_to_all) {
    steps = path(true);
    std::vector<Step> others = path(false);
    if (volume(others) < volume(steps)) steps = std::move(others);
  } else {
    steps = gathers(from, to, mesh);
  }
  for (Step& step : steps) step.held_bytes *= bytes;
  sort_gathers(steps);
  return steps;
}

}  // namespace autoshard
