#include "cost/ways.h"

#include <algorithm>
#include <array>
#include <bit>
#include <deque>
#include <numeric>
#include <optional>
#include <queue>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/hash_index.h"

namespace autoshard {
namespace {

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

/// A sharding of at most `max_moving` parts and as many dims before as after.
struct State {
  static constexpr std::size_t max_dims = 2 * max_moving;

  std::array<std::array<AxisIndex, max_moving>, max_dims> parts;
  std::array<std::uint8_t, max_dims> length = {};
  std::uint8_t rank = 0;

  void add_dim() {
    if (rank == max_dims) throw std::logic_error("redistribution: too many dims");
    ++rank;
  }
  void push(std::size_t d, AxisIndex part) { parts[d][length[d]++] = part; }

  /// Four bits a part and one separator a dim.
  std::uint64_t key() const {
    std::uint64_t code = 0;
    for (std::size_t d = 0; d < rank; ++d) {
      for (std::size_t k = 0; k < length[d]; ++k) code = code << 4 | (parts[d][k] + 1u);
      code = code << 4 | 15u;
    }
    return code;
  }

  bool has_same_dim(const State& other, std::size_t d) const {
    return length[d] == other.length[d] &&
           std::equal(parts[d].begin(), parts[d].begin() + length[d], other.parts[d].begin());
  }
};

/// Shardings that can be reached from one.
class Search {
 public:
  /// `is_in_turn`: what costs the same is looked at in the order in which it was reached.
  Search(const State& from, std::vector<std::int64_t> capacity,
         std::vector<std::int64_t> sizes, bool has_all_to_all, bool is_in_turn = false)
      : capacity_(std::move(capacity)),
        sizes_(std::move(sizes)),
        participants_(std::size_t{1} << sizes_.size(), 1),
        has_all_to_all_(has_all_to_all),
        is_in_turn_(is_in_turn) {
    for (std::size_t parts = 1; parts < participants_.size(); ++parts) {
      const auto first = static_cast<std::size_t>(std::countr_zero(parts));
      participants_[parts] = sizes_[first] * participants_[parts & (parts - 1)];
    }
    for (std::size_t d = 0; d < capacity_.size(); ++d) {
      if (!fits(from, d)) return;
    }
    reach(from, 0, {}, {CollectiveKind::permute, 0, 1, 0}, nullptr);
  }

  Way to(const State& target) { return settle(target).way; }

  /// What lies on the way to `target`, which is the last one.
  std::vector<State> states_to(const State& target) {
    std::vector<State> states;
    for (const Entry* e = &settle(target); e->previous != nullptr; e = e->previous) {
      states.push_back(e->state);
    }
    std::reverse(states.begin(), states.end());
    return states;
  }

  /// The steps to `target`; their held bytes are those of a tensor of one byte, their axes and
  /// participants those of parts.
  std::vector<Step> steps_to(const State& target) {
    std::vector<Step> steps;
    for (const Entry* e = &settle(target); e->previous != nullptr; e = e->previous) {
      if (e->step.participants > 1) steps.push_back(e->step);
    }
    std::reverse(steps.begin(), steps.end());
    return steps;
  }

 private:
  struct Entry {
    State state;
    double cost;
    Way way;
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
  const Entry& settle(const State& target) {
    const std::uint64_t wanted = target.key();
    while (true) {
      if (const int found = find(wanted); found >= 0 && better_than_[found] == done) {
        return entries_[found];
      }
      if (queue_.empty()) throw std::logic_error("redistribution: no way to a sharding");
      const Queued next = queue_.top();
      queue_.pop();
      if (next.cost > better_than_[next.entry]) continue;
      better_than_[next.entry] = done;
      expand(entries_[next.entry]);
    }
  }

  std::int64_t blocks(const State& state, std::size_t d) const {
    std::int64_t product = 1;
    for (std::size_t k = 0; k < state.length[d]; ++k) product *= sizes_[state.parts[d][k]];
    return product;
  }

  bool fits(const State& state, std::size_t d) const {
    return capacity_[d] % blocks(state, d) == 0;
  }

  /// A sharding whose dims all fit.
  void reach(const State& state, double cost, const Way& way, const Step& step,
             const Entry* previous) {
    const std::uint64_t key = state.key();
    int entry = find(key);
    if (entry < 0) {
      entry = static_cast<int>(entries_.size());
      index_.insert(hash_of(key), entry);
      entries_.push_back({state, cost, way, step, previous});
      keys_.push_back(key);
      better_than_.push_back(cost);
    } else {
      if (better_than_[entry] <= cost) return;
      better_than_[entry] = cost;
      Entry& known = entries_[entry];
      known.cost = cost;
      known.way = way;
      known.step = step;
      known.previous = previous;
    }
    queue_.push({cost, entry, is_in_turn_ ? ++turns_ : 0});
  }

  void step(const State& next, const Entry& start, CollectiveKind kind, AxisMask parts,
            double held) {
    const Step made{kind, parts, participants_[parts], held};
    const double moved = made.sent_bytes();
    reach(next, start.cost + moved + step_penalty,
          {start.way.volume + moved, start.way.collectives + 1}, made, &start);
  }

  void expand(const Entry& start) {
    const State& state = start.state;
    std::int64_t pieces = 1;
    AxisMask used = 0;
    for (std::size_t d = 0; d < state.rank; ++d) {
      pieces *= blocks(state, d);
      for (std::size_t k = 0; k < state.length[d]; ++k) used |= 1u << state.parts[d][k];
    }
    const double held = 1.0 / static_cast<double>(pieces);
    for (std::size_t d = 0; d < state.rank; ++d) {
      for (std::size_t part = 0; part < sizes_.size(); ++part) {
        if ((used >> part) & 1u) continue;
        State next = state;
        next.push(d, static_cast<AxisIndex>(part));
        if (!fits(next, d)) continue;
        reach(next, start.cost + step_penalty, start.way, {CollectiveKind::permute, 0, 1, 0},
              &start);
      }
      for (std::size_t keep = 0; keep < state.length[d]; ++keep) {
        AxisMask minor = 0;
        for (std::size_t k = keep; k < state.length[d]; ++k) minor |= 1u << state.parts[d][k];
        State gathered = state;
        gathered.length[d] = static_cast<std::uint8_t>(keep);
        step(gathered, start, CollectiveKind::all_gather, minor, held);
        for (std::size_t taker = 0; has_all_to_all_ && taker < state.rank; ++taker) {
          if (taker == d) continue;
          State moved = gathered;
          for (std::size_t k = keep; k < state.length[d]; ++k) {
            moved.push(taker, state.parts[d][k]);
          }
          if (fits(moved, taker)) step(moved, start, CollectiveKind::all_to_all, minor, held);
        }
      }
    }
    State permuted;
    permuted.rank = state.rank;
    permute(state, permuted, 0, 1, blocks(state, 0), 0, start, held);
  }

  /// Every sharding with as many blocks in each dim, dim by dim.
  void permute(const State& state, State& next, std::size_t d, std::int64_t made,
               std::int64_t wanted, AxisMask used, const Entry& start, double held) {
    if (made == wanted) {
      if (d + 1 < state.rank) {
        permute(state, next, d + 1, 1, blocks(state, d + 1), used, start, held);
        return;
      }
      AxisMask moved = 0;
      for (std::size_t dim = 0; dim < state.rank; ++dim) {
        if (!next.has_same_dim(state, dim)) moved |= moved_parts(state, next, dim);
      }
      if (moved != 0) step(next, start, CollectiveKind::permute, moved, held);
      return;
    }
    for (std::size_t part = 0; part < sizes_.size(); ++part) {
      const std::int64_t size = sizes_[part];
      if (((used >> part) & 1u) || wanted % (made * size) != 0) continue;
      next.push(d, static_cast<AxisIndex>(part));
      permute(state, next, d, made * size, wanted, used | (1u << part), start, held);
      --next.length[d];
    }
  }

  static AxisMask moved_parts(const State& before, const State& after, std::size_t d) {
    std::size_t stays = 0;
    while (stays < std::min(before.length[d], after.length[d]) &&
           before.parts[d][stays] == after.parts[d][stays]) {
      ++stays;
    }
    AxisMask moved = 0;
    for (std::size_t k = stays; k < before.length[d]; ++k) moved |= 1u << before.parts[d][k];
    for (std::size_t k = stays; k < after.length[d]; ++k) moved |= 1u << after.parts[d][k];
    return moved;
  }

  const std::vector<std::int64_t> capacity_, sizes_;
  /// By set of parts: the product of their sizes.
  std::vector<std::int64_t> participants_;
  const bool has_all_to_all_, is_in_turn_;
  std::int64_t turns_ = 0;
  /// Entries stay where they are.
  std::deque<Entry> entries_;
  /// Of each entry, apart, as most that is reached is known and no better: its key, and the
  /// cost that another way must be below.
  std::vector<std::uint64_t> keys_;
  std::vector<double> better_than_;
  static constexpr double done = -1;
  HashIndex index_;
  std::priority_queue<Queued> queue_;
};

/// A list of fixed capacity: there are many queries.
template <typename T, std::size_t most>
struct Short {
  std::array<T, most> items = {};
  std::size_t count = 0;

  void push_back(T item) { items.at(count++) = item; }
  std::size_t size() const { return count; }
  const T* begin() const { return items.data(); }
  const T* end() const { return items.data() + count; }
  bool operator==(const Short&) const = default;
};

/// A redistribution over parts of mesh axes.
struct Query {
  State start, goal;
  /// How many blocks each dim can have.
  Short<std::int64_t, State::max_dims> capacity;
  /// Of each part: its size and the mesh axes it belongs to.
  Short<std::int64_t, max_moving> sizes;
  Short<AxisMask, max_moving> axes;
  /// What a device holds before the parts cut anything, of the whole tensor.
  double whole = 1;
  bool has_all_to_all = true;

  /// The next dim, of the parts that `start` and `goal` now get.
  void add_dim(std::int64_t most_blocks) {
    start.add_dim();
    goal.add_dim();
    capacity.push_back(most_blocks);
  }
};

/// Over all parts of a small mesh. Dims that neither sharding cuts take no part.
Query query_of_mesh(const std::vector<std::int64_t>& dims, const Sharding& from,
                    const Sharding& to, const Mesh& mesh) {
  const Parts& parts = kept_parts_of(mesh);
  Query q;
  std::int64_t devices = 1;
  for (std::size_t axis = 0; axis < parts.of_axis.size(); ++axis) {
    for (AxisIndex part : parts.of_axis[axis]) {
      q.sizes.push_back(parts.sizes[part]);
      q.axes.push_back(1u << axis);
      devices *= parts.sizes[part];
    }
  }
  const auto split = [&](const AxisList& axes, State& state) {
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

std::size_t common_prefix(const AxisList& a, const AxisList& b) {
  std::size_t length = 0;
  while (length < std::min(a.size(), b.size()) && a[length] == b[length]) ++length;
  return length;
}

/// Over the axes that move, numbered as they come in `from`, then in `to`, so that moves of
/// one pattern share a search. None if there are too many.
std::optional<Query> query_of_moves(const std::vector<std::int64_t>& dims,
                                    const Sharding& from, const Sharding& to,
                                    const Mesh& mesh) {
  Query q;
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

/// What a search depends on.
struct SearchKey {
  std::uint64_t start;
  decltype(Query::capacity) capacity;
  decltype(Query::sizes) sizes;
  bool has_all_to_all;
  bool operator==(const SearchKey&) const = default;
};

struct SearchKeyHash {
  std::size_t operator()(const SearchKey& key) const {
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

Search& search_of(const Query& q) {
  thread_local std::unordered_map<SearchKey, Search, SearchKeyHash> searches;
  const SearchKey key{q.start.key(), q.capacity, q.sizes, q.has_all_to_all};
  auto entry = searches.find(key);
  if (entry == searches.end()) {
    entry = searches
                .try_emplace(key, q.start,
                             std::vector<std::int64_t>(q.capacity.begin(), q.capacity.end()),
                             std::vector<std::int64_t>(q.sizes.begin(), q.sizes.end()),
                             q.has_all_to_all)
                .first;
  }
  return entry->second;
}

std::int64_t devices_along(AxisMask axes, const Mesh& mesh) {
  std::int64_t devices = 1;
  for (int axis = 0; axis < mesh.rank(); ++axis) {
    if (axes >> axis & 1u) devices *= mesh.axis_sizes[axis];
  }
  return devices;
}

/// A way by rules, step by step.
class InOrder {
 public:
  /// `cuts_first`: any free axis before the first move.
  InOrder(const std::vector<std::int64_t>& dims, Sharding from, const Sharding& to,
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
    if (dim == now.dims.size()) throw std::logic_error("redistribution: nothing to gather");
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

/// The most blocks that parts of these sizes can make of a dim of `capacity`, in the sense
/// that the same products divide both.
std::int64_t blocks_of(std::int64_t capacity, const Short<std::int64_t, max_moving>& sizes) {
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
Query in_common_order(const Query& q) {
  std::array<std::uint8_t, State::max_dims> order;
  std::array<std::uint64_t, State::max_dims> code;
  std::array<std::int64_t, State::max_dims> capacity;
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
  Query sorted = q;
  for (std::size_t d = 0; d < q.start.rank; ++d) {
    sorted.start.parts[d] = q.start.parts[order[d]];
    sorted.start.length[d] = q.start.length[order[d]];
    sorted.goal.parts[d] = q.goal.parts[order[d]];
    sorted.goal.length[d] = q.goal.length[order[d]];
    sorted.capacity.items[d] = capacity[order[d]];
  }
  return sorted;
}

std::optional<Query> query(const std::vector<std::int64_t>& dims, const Sharding& from,
                           const Sharding& to, const Mesh& mesh) {
  std::optional<Query> q = mesh.rank() <= max_parts ? query_of_mesh(dims, from, to, mesh)
                                                    : query_of_moves(dims, from, to, mesh);
  if (!q) return q;
  q->has_all_to_all = mesh.has_all_to_all;
  return in_common_order(*q);
}

/// Of gathers in a row the smallest group first, of equal ones that of the most major axis,
/// whose links are the slow ones. Each is of another dim, so that their order is free.
void sort_gathers(std::vector<Step>& steps) {
  const auto is_gather = [](const Step& step) {
    return step.kind == CollectiveKind::all_gather;
  };
  for (auto first = steps.begin(); first != steps.end();) {
    first = std::find_if(first, steps.end(), is_gather);
    const auto last = std::find_if_not(first, steps.end(), is_gather);
    if (last - first < 2) {
      first = last;
      continue;
    }
    double held = first->held_bytes;
    std::stable_sort(first, last, [](const Step& one, const Step& other) {
      return std::pair(one.participants, __builtin_ctz(one.axes)) <
             std::pair(other.participants, __builtin_ctz(other.axes));
    });
    for (; first != last; ++first) {
      first->held_bytes = held;
      held *= static_cast<double>(first->participants);
    }
  }
}

/// The way where there is nothing to search, with the held bytes of a tensor of one byte. No
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

Way cheapest_way(const std::vector<std::int64_t>& dims, const Sharding& from,
                 const Sharding& to, const Mesh& mesh) {
  Way way;
  const auto add = [&way](const std::vector<Step>& steps) {
    for (const Step& step : steps) {
      way.volume += step.sent_bytes();
      ++way.collectives;
    }
    return way;
  };
  if (const auto direct = direct_steps(from, to, mesh)) return add(*direct);
  if (const auto q = query(dims, from, to, mesh)) {
    way = search_of(*q).to(q->goal);
    way.volume *= q->whole;
    return way;
  }
  return add(steps_in_order(dims, from, to, mesh, 1.0));
}

std::vector<Step> steps_of_cheapest_way(const std::vector<std::int64_t>& dims,
                                        const Sharding& from, const Sharding& to,
                                        const Mesh& mesh, double bytes) {
  if (auto direct = direct_steps(from, to, mesh)) {
    for (Step& step : *direct) step.held_bytes *= bytes;
    sort_gathers(*direct);
    return *std::move(direct);
  }
  const auto q = query(dims, from, to, mesh);
  if (!q) return steps_in_order(dims, from, to, mesh, bytes);
  std::vector<Step> steps = search_of(*q).steps_to(q->goal);
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

std::vector<Step> steps_in_order(const std::vector<std::int64_t>& dims, const Sharding& from,
                                 const Sharding& to, const Mesh& mesh, double bytes) {
  const auto way = [&](bool cuts_first) {
    InOrder in_order(dims, from, to, mesh, cuts_first);
    while (in_order.advance()) {
    }
    return std::move(in_order.steps);
  };
  const auto volume = [](const std::vector<Step>& steps) {
    double sum = 0;
    for (const Step& step : steps) sum += step.sent_bytes();
    return sum;
  };
  std::vector<Step> steps;
  if (mesh.has_all_to_all) {
    steps = way(true);
    std::vector<Step> others = way(false);
    if (volume(others) < volume(steps)) steps = std::move(others);
  } else {
    steps = gathers(from, to, mesh);
  }
  for (Step& step : steps) step.held_bytes *= bytes;
  sort_gathers(steps);
  return steps;
}

std::vector<Sharding> reshard_path(const std::vector<std::int64_t>& dims, const Sharding& from,
                                   const Sharding& to, const Mesh& mesh) {
  if (mesh.axis_sizes.size() > max_moving || dims.size() > State::max_dims ||
      from.dims.size() != dims.size() || to.dims.size() != dims.size()) {
    throw std::invalid_argument("reshard_path: too many axes or dims, or ranks differ");
  }
  const auto state_of = [&](const Sharding& sharding) {
    State state;
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
  Search search(state_of(from), dims, mesh.axis_sizes, mesh.has_all_to_all, true);
  std::vector<Sharding> path;
  for (const State& state : search.states_to(state_of(to))) {
    Sharding& sharding = path.emplace_back();
    for (std::size_t d = 0; d < state.rank; ++d) {
      const auto& axes = state.parts[d];
      sharding.dims.emplace_back(axes.begin(), axes.begin() + state.length[d]);
    }
  }
  return path;
}

}  // namespace autoshard
