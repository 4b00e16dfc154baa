#include "cost/ways.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <string>
#include <unordered_map>

namespace autoshard {
namespace {

constexpr int max_parts = 3;
/// Of two ways that move the same, the shorter one is taken.
constexpr double step_penalty = 1e-4;

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

AxisList split(const AxisList& axes, const Parts& parts) {
  AxisList result;
  for (AxisIndex axis : axes) {
    const AxisList& of_axis = parts.of_axis[axis];
    result.insert(result.end(), of_axis.begin(), of_axis.end());
  }
  return result;
}

/// All shardings that can be reached from one, by their keys.
class Search {
 public:
  Search(const Sharding& from, const std::vector<std::int64_t>& capacity,
         const std::vector<std::int64_t>& sizes)
      : capacity_(capacity), mesh_{sizes} {
    reach(from, 0, {});
    while (!queue_.empty()) {
      const auto [cost, sharding] = queue_.top();
      queue_.pop();
      Entry& entry = entries_[key(sharding)];
      if (entry.is_done || cost > entry.cost) continue;
      entry.is_done = true;
      expand(sharding, cost, entry.way);
    }
  }

  Way to(const Sharding& target) const { return entries_.at(key(target)).way; }

 private:
  struct Entry {
    double cost;
    Way way;
    bool is_done = false;
  };
  struct Later {
    bool operator()(const auto& a, const auto& b) const { return a.first > b.first; }
  };

  void reach(const Sharding& sharding, double cost, Way way) {
    for (std::size_t d = 0; d < capacity_.size(); ++d) {
      if (capacity_[d] % num_shards(sharding.dims[d], mesh_) != 0) return;
    }
    auto [entry, is_new] = entries_.try_emplace(key(sharding), Entry{cost, way});
    if (!is_new) {
      if (entry->second.is_done || entry->second.cost <= cost) return;
      entry->second.cost = cost;
      entry->second.way = way;
    }
    queue_.emplace(cost, sharding);
  }

  void step(const Sharding& sharding, double cost, Way way, double moved) {
    way.volume += moved;
    if (moved > 0) ++way.collectives;
    reach(sharding, cost + moved + step_penalty, way);
  }

  void expand(const Sharding& sharding, double cost, Way way) {
    const double held = 1.0 / static_cast<double>(num_shards(sharding, mesh_));
    std::uint32_t used = 0;
    for (const AxisList& axes : sharding.dims) {
      for (AxisIndex axis : axes) used |= 1u << axis;
    }
    for (std::size_t d = 0; d < sharding.dims.size(); ++d) {
      const AxisList& axes = sharding.dims[d];
      for (int axis = 0; axis < mesh_.rank(); ++axis) {
        if ((used >> axis) & 1u) continue;
        Sharding next = sharding;
        next.dims[d].push_back(static_cast<AxisIndex>(axis));
        step(next, cost, way, 0);
      }
      for (std::size_t keep = 0; keep < axes.size(); ++keep) {
        const AxisList minor(axes.begin() + static_cast<std::ptrdiff_t>(keep), axes.end());
        const auto pieces = static_cast<double>(num_shards(minor, mesh_));
        Sharding gathered = sharding;
        gathered.dims[d].resize(keep);
        step(gathered, cost, way, (pieces - 1) * held);
        for (std::size_t taker = 0; taker < sharding.dims.size(); ++taker) {
          if (taker == d) continue;
          Sharding moved = gathered;
          moved.dims[taker].insert(moved.dims[taker].end(), minor.begin(), minor.end());
          step(moved, cost, way, (pieces - 1) / pieces * held);
        }
      }
    }
    Sharding permuted{std::vector<AxisList>(sharding.dims.size())};
    permute(sharding, permuted, 0, 1, 0, cost, way, held);
  }

  /// Every sharding with as many blocks in each dim, dim by dim.
  void permute(const Sharding& sharding, Sharding& next, std::size_t d, std::int64_t blocks,
               std::uint32_t used, double cost, const Way& way, double held) {
    if (d == sharding.dims.size()) {
      if (!(next == sharding)) step(next, cost, way, held);
      return;
    }
    const std::int64_t wanted = num_shards(sharding.dims[d], mesh_);
    if (blocks == wanted) {
      permute(sharding, next, d + 1, 1, used, cost, way, held);
      return;
    }
    for (int axis = 0; axis < mesh_.rank(); ++axis) {
      const std::int64_t size = mesh_.axis_sizes[axis];
      if (((used >> axis) & 1u) || wanted % (blocks * size) != 0) continue;
      next.dims[d].push_back(static_cast<AxisIndex>(axis));
      permute(sharding, next, d, blocks * size, used | (1u << axis), cost, way, held);
      next.dims[d].pop_back();
    }
  }

  const std::vector<std::int64_t> capacity_;
  const Mesh mesh_;
  std::unordered_map<std::string, Entry> entries_;
  std::priority_queue<std::pair<double, Sharding>, std::vector<std::pair<double, Sharding>>,
                      Later>
      queue_;
};

}  // namespace

bool has_ways(const Mesh& mesh) {
  return static_cast<int>(parts_of(mesh).sizes.size()) <= max_parts;
}

Way cheapest_way(const std::vector<std::int64_t>& dims, const Sharding& from,
                 const Sharding& to, const Mesh& mesh) {
  thread_local std::unordered_map<std::string, Search> searches;
  const Parts parts = parts_of(mesh);
  const std::int64_t devices = std::accumulate(parts.sizes.begin(), parts.sizes.end(),
                                               std::int64_t{1}, std::multiplies<>());
  // Dims that neither sharding cuts take no part.
  Sharding start, goal;
  std::vector<std::int64_t> capacity;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    if (from.dims[d].empty() && to.dims[d].empty()) continue;
    start.dims.push_back(split(from.dims[d], parts));
    goal.dims.push_back(split(to.dims[d], parts));
    capacity.push_back(std::gcd(dims[d], devices));
  }
  std::string id = key(start) + "/";
  for (std::int64_t c : capacity) id += std::to_string(c) + ",";
  id += "/";
  for (std::int64_t size : parts.sizes) id += std::to_string(size) + ",";
  auto entry = searches.find(id);
  if (entry == searches.end()) {
    entry = searches.try_emplace(id, start, capacity, parts.sizes).first;
  }
  return entry->second.to(goal);
}

}  // namespace autoshard
