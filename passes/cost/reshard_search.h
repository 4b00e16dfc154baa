/// Dijkstra's search over shardings, and searches that are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <queue>
#include <unordered_map>
#include <vector>

#include "cost/reshard_path.h"
#include "cost/reshard_query.h"
#include "model/hash_index.h"

namespace autoshard {

/// Shardings that can be reached from one, in the order of what it takes to reach them. A
/// search goes on where it ended when it is asked for another target.
class ReshardSearch {
 public:
  /// From `from`, where dim d can have as many blocks as divide `capacity[d]`, over parts of
  /// these sizes. `is_in_turn`: what costs the same is looked at in the order in which it was
  /// reached.
  ReshardSearch(const ReshardState& from, std::vector<std::int64_t> capacity,
                std::vector<std::int64_t> sizes, bool has_all_to_all, bool is_in_turn = false);

  PathCost to(const ReshardState& target) { return settle(target).path; }

  /// What lies on the path to `target`, which is the last one.
  std::vector<ReshardState> states_to(const ReshardState& target);
  /// The steps to `target`; their held bytes are those of a tensor of one byte, their axes and
  /// participants those of parts.
  std::vector<Step> steps_to(const ReshardState& target);
  /// Shardings that were reached so far.
  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    ReshardState state;
    double cost;
    PathCost path;
    /// The last step, of one participant if it only cuts, and where it starts.
    Step step;
    const Entry* previous;
  };
  struct Queued {
    double cost;
    int entry;
    /// 0: of equal costs any comes first.
    std::int64_t turn;
    bool operator<(const Queued& other) const {
      return cost > other.cost || (cost == other.cost && turn > other.turn);
    }
  };

  static std::uint64_t hash_of(std::uint64_t key) {
    const std::uint64_t hash = key * 0x9e3779b97f4a7c15ull;
    return hash ^ (hash >> 32);
  }

  int find(std::uint64_t key) const {
    return index_.find(hash_of(key), [&](int e) { return keys_[e] == key; });
  }

  /// Searches until nothing cheaper can lead to `target`.
  const Entry& settle(const ReshardState& target);

  std::int64_t blocks(const ReshardState& state, std::size_t d) const {
    std::int64_t product = 1;
    for (std::size_t k = 0; k < state.length[d]; ++k) product *= sizes_[state.parts[d][k]];
    return product;
  }

  bool fits(const ReshardState& state, std::size_t d) const {
    return capacity_[d] % blocks(state, d) == 0;
  }

  /// A sharding whose dims all fit.
  void reach(const ReshardState& state, double cost, const PathCost& path, const Step& step,
             const Entry* previous);

  void step(const ReshardState& next, const Entry& start, CollectiveKind kind, AxisMask parts,
            double held);

  void expand(const Entry& start);

  /// Every sharding with as many blocks in each dim, dim by dim.
  void permute(const ReshardState& state, ReshardState& next, std::size_t d, std::int64_t made,
               std::int64_t wanted, AxisMask used, const Entry& start, double held);

  static AxisMask moved_parts(const ReshardState& before, const ReshardState& after,
                              std::size_t d);

  const std::vector<std::int64_t> capacity_, sizes_;
  /// By set of parts: the product of their sizes.
  std::vector<std::int64_t> participants_;
  const bool has_all_to_all_, is_in_turn_;
  std::int64_t turns_ = 0;
  /// Entries stay where they are.
  std::deque<Entry> entries_;
  /// Key of each entry, and the cost that another path must be below: apart, as most that is
  /// reached is known and no better.
  std::vector<std::uint64_t> keys_;
  std::vector<double> better_than_;
  static constexpr double done = -1;
  HashIndex index_;
  std::priority_queue<Queued> queue_;
};

/// What a search depends on.
struct ReshardSearchKey {
  std::uint64_t start;
  decltype(ReshardQuery::capacity) capacity;
  decltype(ReshardQuery::sizes) sizes;
  bool has_all_to_all;
  bool operator==(const ReshardSearchKey&) const = default;
};

struct ReshardSearchKeyHash {
  std::size_t operator()(const ReshardSearchKey& key) const {
    std::uint64_t hash = key.start;
    const auto add = [&hash](std::int64_t number) {
      hash = (hash ^ static_cast<std::uint64_t>(number)) * 0x9e3779b97f4a7c15ull;
      hash ^= hash >> 29;
    };
    for (std::int64_t capacity : key.capacity) add(capacity);
    for (std::int64_t size : key.sizes) add(-size);
    add(key.has_all_to_all ? 1 : 0);
    return hash;
  }
};

/// Searches that were made. One answers for all queries that differ in their target only. All
/// are dropped when they have reached more shardings than a limit.
class ReshardSearches {
 public:
  /// What it takes to get to the goal of a query, and the steps, for a tensor of which a
  /// device would hold one byte if the parts cut nothing.
  PathCost cost(const ReshardQuery& query);
  std::vector<Step> steps(const ReshardQuery& query);

 private:
  ReshardSearch& search_of(const ReshardQuery& query);
  /// Calls `ask(search)` and counts what the search reaches.
  template <typename Ask>
  auto counted(const ReshardQuery& query, const Ask& ask);

  std::unordered_map<ReshardSearchKey, ReshardSearch, ReshardSearchKeyHash> searches_;
  std::size_t reached_ = 0;
};

/// Those of the calling thread.
ReshardSearches& reshard_searches();

}  // namespace autoshard
