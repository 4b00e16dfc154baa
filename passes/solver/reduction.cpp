#include "solver/reduction.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <queue>
#include <tuple>
#include <utility>

#include "solver/kernels.h"

namespace autoshard::solver {
namespace {

std::uint64_t hash_of_pair(int a, int b) {
  const std::uint64_t pair = static_cast<std::uint64_t>(static_cast<std::uint32_t>(a)) << 32 |
                             static_cast<std::uint32_t>(b);
  const std::uint64_t hash = pair * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 32);
}

}  // namespace

Reduction::Reduction(const Problem& problem) {
  nodes_.resize(problem.nodes());
  costs_ = problem.option_cost;
  originals_.resize(costs_.size());
  for (int i = 0; i < problem.nodes(); ++i) {
    Node& node = nodes_[i];
    const auto count = static_cast<std::size_t>(problem.option_count(i));
    node.cost = {costs_.data() + problem.option_offset[i], count};
    node.original = {originals_.data() + problem.option_offset[i], count};
    for (std::size_t s = 0; s < node.original.size(); ++s) {
      node.original[s] = static_cast<int>(s);
    }
  }
  if (problem.memory_limit) read_memory(problem);
  std::vector<int> stored(problem.tables.size(), -1);
  edges_.reserve(problem.edge_from.size() + problem.edge_from.size() / 2);
  for (int e = 0; e < problem.edges(); ++e) {
    const int t = problem.edge_table[e];
    if (stored[t] < 0) {
      const Table& table = problem.tables[t];
      stored[t] = tables_.add(table.rows, table.cols, table.cost.data());
    }
    const double weight = problem.edge_weight.empty() ? 1.0 : problem.edge_weight[e];
    const int table = tables_.scaled(stored[t], weight);
    const int a = problem.edge_from[e], b = problem.edge_to[e];
    if (a == b) {
      const int k = tables_.rows(table);
      for (int s = 0; s < k; ++s) {
        nodes_[a].cost[s] += tables_.data(table)[static_cast<std::size_t>(s) * k + s];
      }
    } else {
      add_edge(a, b, table);
    }
  }
}

void Reduction::read_memory(const Problem& problem) {
  // The live set grows at firsts and shrinks at lasts; it is maximal at a first that is
  // followed by a last. Every interval keeps at least one such moment.
  std::vector<std::pair<std::int64_t, bool>> events;  // (time, is a first); lasts sort first
  for (int i = 0; i < problem.nodes(); ++i) {
    if (problem.live_first[i] >= problem.live_last[i]) continue;
    events.emplace_back(problem.live_first[i], true);
    events.emplace_back(problem.live_last[i], false);
  }
  std::sort(events.begin(), events.end());
  for (std::size_t e = 0; e + 1 < events.size(); ++e) {
    if (events[e].second && !events[e + 1].second) moments_.push_back(events[e].first);
  }
  room_.assign(moments_.size(), *problem.memory_limit);
  const auto position = [this](std::int64_t time) {
    return static_cast<int>(std::lower_bound(moments_.begin(), moments_.end(), time) -
                            moments_.begin());
  };
  for (int i = 0; i < problem.nodes(); ++i) {
    if (problem.live_first[i] >= problem.live_last[i]) continue;
    const auto begin = problem.option_memory.begin() + problem.option_offset[i];
    nodes_[i].memory.push_back({position(problem.live_first[i]),
                                position(problem.live_last[i]),
                                {begin, begin + problem.option_count(i)}});
  }
  // Through differences: one sweep for all nodes.
  std::vector<std::int64_t> change(moments_.size() + 1, 0);
  for (Node& node : nodes_) {
    for (Piece& piece : node.memory) {
      const std::int64_t least = *std::min_element(piece.bytes.begin(), piece.bytes.end());
      change[piece.first] += least;
      change[piece.last] -= least;
      for (std::int64_t& bytes : piece.bytes) bytes -= least;
    }
    level_memory(node);
  }
  std::int64_t used = 0;
  for (std::size_t t = 0; t < room_.size(); ++t) room_[t] -= used += change[t];
}

void Reduction::level_memory(Node& node) {
  for (Piece& piece : node.memory) {
    const std::int64_t least = *std::min_element(piece.bytes.begin(), piece.bytes.end());
    if (least == 0) continue;
    for (std::int64_t& bytes : piece.bytes) bytes -= least;
    for (int t = piece.first; t < piece.last; ++t) room_[t] -= least;
  }
  std::erase_if(node.memory, [](const Piece& piece) {
    return std::all_of(piece.bytes.begin(), piece.bytes.end(),
                       [](std::int64_t bytes) { return bytes == 0; });
  });
}

bool Reduction::restrict_memory(bool& any) {
  any = false;
  if (room_.empty()) return true;
  const auto tightest = std::min_element(room_.begin(), room_.end());
  if (*tightest < 0) {
    diagnosis_ = "memory: at moment " + std::to_string(moments_[tightest - room_.begin()]) +
                 " the smallest allowed options exceed the limit by " +
                 std::to_string(-*tightest) + " bytes";
    return false;
  }
  // least[l][t]: smallest room in [t, t + 2^l).
  std::vector<std::vector<std::int64_t>> least = {room_};
  for (std::size_t width = 1; 2 * width <= room_.size(); width *= 2) {
    const std::vector<std::int64_t>& half = least.back();
    std::vector<std::int64_t> next(room_.size() - 2 * width + 1);
    for (std::size_t t = 0; t < next.size(); ++t) next[t] = std::min(half[t], half[t + width]);
    least.push_back(std::move(next));
  }
  std::vector<int> kept;
  for (int v = 0; v < nodes(); ++v) {
    Node& node = nodes_[v];
    if (!node.alive || node.memory.empty()) continue;
    const int k = static_cast<int>(node.cost.size());
    std::vector<char> fits(k, 1);
    for (const Piece& piece : node.memory) {
      const int level = std::bit_width(static_cast<unsigned>(piece.last - piece.first)) - 1;
      const std::int64_t room =
          std::min(least[level][piece.first], least[level][piece.last - (1 << level)]);
      for (int s = 0; s < k; ++s) fits[s] &= piece.bytes[s] <= room;
    }
    kept.clear();
    for (int s = 0; s < k; ++s) {
      if (fits[s]) kept.push_back(s);
    }
    if (static_cast<int>(kept.size()) == k) continue;
    any = true;
    if (kept.empty()) {
      diagnosis_ = "memory: no option of node " + std::to_string(v) +
                   " fits, even if all others " + "take their smallest; tightest moment " +
                   std::to_string(moments_[tightest - room_.begin()]);
      return false;
    }
    keep_options(v, kept);
  }
  return true;
}

bool Reduction::drop_implied_moments() {
  const int count = static_cast<int>(room_.size());
  if (count == 0) return false;
  struct Change {
    int node;
    const Piece* piece;
  };
  // Changes on the way from the previous moment left to t.
  std::vector<std::vector<Change>> starts(count + 1), ends(count + 1);
  for (int v = 0; v < nodes(); ++v) {
    if (!nodes_[v].alive) continue;
    for (const Piece& piece : nodes_[v].memory) {
      starts[piece.first].push_back({v, &piece});
      ends[piece.last].push_back({v, &piece});
    }
  }
  std::vector<int> previous(count + 1), next(count + 1);
  for (int t = 0; t <= count; ++t) {
    previous[t] = t - 1;
    next[t] = t + 1;
  }
  std::vector<std::pair<int, const Piece*>> grown, shrunk;
  std::vector<std::int64_t> difference;
  // Upper bound on bytes at one end of the gap minus bytes at the other end.
  const auto excess = [&](const std::vector<Change>& plus, const std::vector<Change>& minus) {
    grown.clear();
    shrunk.clear();
    for (const Change& change : plus) grown.emplace_back(change.node, change.piece);
    for (const Change& change : minus) shrunk.emplace_back(change.node, change.piece);
    const auto by_node = [](const auto& x, const auto& y) { return x.first < y.first; };
    std::sort(grown.begin(), grown.end(), by_node);
    std::sort(shrunk.begin(), shrunk.end(), by_node);
    std::int64_t total = 0;
    std::size_t other = 0;
    for (std::size_t i = 0; i < grown.size();) {
      const int v = grown[i].first;
      difference.assign(nodes_[v].cost.size(), 0);
      for (; i < grown.size() && grown[i].first == v; ++i) {
        for (std::size_t s = 0; s < difference.size(); ++s) {
          difference[s] += grown[i].second->bytes[s];
        }
      }
      while (other < shrunk.size() && shrunk[other].first < v) ++other;
      for (; other < shrunk.size() && shrunk[other].first == v; ++other) {
        for (std::size_t s = 0; s < difference.size(); ++s) {
          difference[s] -= shrunk[other].second->bytes[s];
        }
      }
      // A node that only shrinks counts 0: its smallest option takes nothing.
      total += *std::max_element(difference.begin(), difference.end());
    }
    return total;
  };
  constexpr std::size_t kLargestGap = 400;
  std::vector<char> dropped(count, 0);
  std::vector<int> queue(count);
  for (int t = 0; t < count; ++t) queue[t] = t;
  std::vector<char> queued(count, 1);
  bool any = false;
  for (std::size_t at = 0; at < queue.size(); ++at) {
    const int t = queue[at];
    queued[t] = 0;
    if (dropped[t]) continue;
    const int before = previous[t], after = next[t];
    if (starts[t].size() + ends[t].size() + starts[after].size() + ends[after].size() >
        kLargestGap) {
      continue;
    }
    const bool implied =
        (before >= 0 && excess(starts[t], ends[t]) <= room_[t] - room_[before]) ||
        (after < count && excess(ends[after], starts[after]) <= room_[t] - room_[after]);
    if (!implied) continue;
    dropped[t] = 1;
    any = true;
    next[before >= 0 ? before : count] = after;  // entry `count` of next is never read
    previous[after] = before;
    // Pieces live at t only are gone; the rest joins the gap before `after`.
    std::vector<Change> started, ended;
    for (const Change& change : starts[t]) {
      if (change.piece->last > after || (change.piece->last > t && after == count)) {
        started.push_back(change);
      } else if (std::none_of(ends[after].begin(), ends[after].end(),
                              [&](const Change& end) { return end.piece == change.piece; })) {
        started.push_back(change);
      }
    }
    for (const Change& change : ends[after]) {
      if (std::none_of(starts[t].begin(), starts[t].end(),
                       [&](const Change& start) { return start.piece == change.piece; })) {
        ended.push_back(change);
      }
    }
    started.insert(started.end(), starts[after].begin(), starts[after].end());
    ended.insert(ended.end(), ends[t].begin(), ends[t].end());
    starts[after] = std::move(started);
    ends[after] = std::move(ended);
    starts[t].clear();
    ends[t].clear();
    for (int near : {before, after}) {
      if (near >= 0 && near < count && !queued[near]) {
        queued[near] = 1;
        queue.push_back(near);
      }
    }
  }
  if (!any) return false;
  std::vector<int> position(count + 1, 0);
  int left = 0;
  for (int t = 0; t < count; ++t) {
    position[t] = left;
    if (dropped[t]) continue;
    moments_[left] = moments_[t];
    room_[left] = room_[t];
    ++left;
  }
  position[count] = left;
  moments_.resize(left);
  room_.resize(left);
  for (Node& node : nodes_) {
    for (Piece& piece : node.memory) {
      piece.first = position[piece.first];
      piece.last = position[piece.last];
    }
    // Pieces over the same moments add up; those over none are gone.
    std::erase_if(node.memory, [](const Piece& piece) { return piece.first >= piece.last; });
    std::sort(node.memory.begin(), node.memory.end(), [](const Piece& x, const Piece& y) {
      return std::tie(x.first, x.last) < std::tie(y.first, y.last);
    });
    std::size_t kept = 0;
    for (std::size_t i = 0; i < node.memory.size(); ++i) {
      Piece& piece = node.memory[i];
      if (kept > 0 && node.memory[kept - 1].first == piece.first &&
          node.memory[kept - 1].last == piece.last) {
        for (std::size_t s = 0; s < piece.bytes.size(); ++s) {
          node.memory[kept - 1].bytes[s] += piece.bytes[s];
        }
      } else if (kept++ != i) {
        node.memory[kept - 1] = std::move(piece);
      }
    }
    node.memory.resize(kept);
    level_memory(node);
  }
  std::fill(dominance_current_.begin(), dominance_current_.end(), 0);
  return true;
}

bool Reduction::merge_tied() {
  bool any = false;
  std::vector<int> edges;
  std::vector<int> follows;
  for (std::size_t e = 0; e < edges_.size(); ++e) {
    if (!edges_[e].alive) continue;
    const int shorter = std::min(tables_.rows(edges_[e].table), tables_.cols(edges_[e].table));
    if (shorter > 1 && !tables_.has_infinity(edges_[e].table)) continue;
    for (int side = 0; side < 2; ++side) {
      const int u = side == 0 ? edges_[e].a : edges_[e].b;
      const int v = side == 0 ? edges_[e].b : edges_[e].a;
      // Of two nodes that determine each other, the one with fewer edges goes.
      if (side == 0 && nodes_[v].degree > nodes_[u].degree &&
          nodes_[u].cost.size() == nodes_[v].cost.size()) {
        continue;
      }
      const int table = oriented(static_cast<int>(e), u);
      const int rows = tables_.rows(table), cols = tables_.cols(table);
      follows.assign(rows, -1);
      bool tied = true;
      for (int s = 0; s < rows && tied; ++s) {
        for (int c = 0; c < cols && tied; ++c) {
          if (tables_.data(table)[static_cast<std::size_t>(s) * cols + c] == kNotAllowed)
            continue;
          tied = follows[s] < 0;
          follows[s] = c;
        }
        tied = tied && follows[s] >= 0;
      }
      if (!tied) continue;
      Node& from = nodes_[v];
      Node& into = nodes_[u];
      Step step{v,
                {u, -1},
                {tables_.transpose(table), -1},
                {into.history.size(), 0, from.history.size()},
                from.cost};
      for (int s = 0; s < rows; ++s) {
        into.cost[s] += tables_.data(table)[static_cast<std::size_t>(s) * cols + follows[s]] +
                        from.cost[follows[s]];
      }
      drop_edge(static_cast<int>(e));
      live_edges(v, edges);
      const int list = tables_.add_list(follows);
      for (int moved : edges) {
        const int w = other(moved, v);
        const int moved_table = tables_.selected(oriented(moved, v), list, -1);
        drop_edge(moved);
        add_edge(u, w, moved_table);
        if (!dominance_current_.empty()) dominance_current_[w] = 0;
      }
      for (const Piece& piece : from.memory) {
        Piece copy{piece.first, piece.last, std::vector<std::int64_t>(rows)};
        for (int s = 0; s < rows; ++s) copy.bytes[s] = piece.bytes[follows[s]];
        into.memory.push_back(std::move(copy));
      }
      from.memory.clear();
      level_memory(into);
      from.alive = false;
      if (!dominance_current_.empty()) dominance_current_[u] = 0;
      steps_.push_back(std::move(step));
      any = true;
      break;
    }
  }
  return any;
}

void Reduction::add_edge(int a, int b, int table) {
  if (a > b) {
    std::swap(a, b);
    table = tables_.transpose(table);
  }
  const std::uint64_t hash = hash_of_pair(a, b);
  const int found = edge_of_pair_.find(
      hash, [&](int e) { return edges_[e].alive && edges_[e].a == a && edges_[e].b == b; });
  if (found >= 0) {
    edges_[found].table = tables_.sum(edges_[found].table, table);
    return;
  }
  const int added = static_cast<int>(edges_.size());
  edge_of_pair_.insert(hash, added);
  edges_.push_back({a, b, table, true});
  for (int end : {a, b}) {
    Node& node = nodes_[end];
    (node.last_edge < 0 ? node.first_edge : next_edge(node.last_edge, end)) = added;
    node.last_edge = added;
    ++node.degree;
  }
}

void Reduction::drop_edge(int e) {
  edges_[e].alive = false;
  --nodes_[edges_[e].a].degree;
  --nodes_[edges_[e].b].degree;
}

int Reduction::oriented(int e, int node) {
  return edges_[e].a == node ? edges_[e].table : tables_.transpose(edges_[e].table);
}

void Reduction::live_edges(int node, std::vector<int>& out) {
  out.clear();
  Node& owner = nodes_[node];
  int last = -1;
  // Dead ones are taken out on the way.
  for (int e = owner.first_edge; e >= 0; e = next_edge(e, node)) {
    if (!edges_[e].alive) continue;
    (last < 0 ? owner.first_edge : next_edge(last, node)) = e;
    last = e;
    out.push_back(e);
  }
  if (last < 0) {
    owner.first_edge = -1;
  } else {
    next_edge(last, node) = -1;
  }
  owner.last_edge = last;
}

void Reduction::keep_options(int node, const std::vector<int>& kept) {
  Node& changed = nodes_[node];
  const int list = tables_.add_list(kept);
  changed.history.emplace_back(
      earlier_.emplace_back(changed.original.begin(), changed.original.end()));
  for (std::size_t s = 0; s < kept.size(); ++s) {
    changed.cost[s] = changed.cost[kept[s]];
    changed.original[s] = changed.original[kept[s]];
  }
  for (Piece& piece : changed.memory) {
    for (std::size_t s = 0; s < kept.size(); ++s) piece.bytes[s] = piece.bytes[kept[s]];
    piece.bytes.resize(kept.size());
  }
  level_memory(changed);
  changed.cost = changed.cost.first(kept.size());
  changed.original = changed.original.first(kept.size());
  std::vector<int> edges;
  live_edges(node, edges);
  for (int e : edges) {
    Edge& edge = edges_[e];
    edge.table = edge.a == node ? tables_.selected(edge.table, list, -1)
                                : tables_.selected(edge.table, -1, list);
  }
}

bool Reduction::presolve() {
  bool any = true;
  while (any) {
    if (!restrict_options()) return false;
    fold_single_options();
    any = merge_tied();
    if (any && !restrict_options()) return false;
    any |= remove_dominated();
    fold_single_options();
    bool memory = false;
    if (!restrict_memory(memory)) return false;
    any |= memory;
    any |= drop_implied_moments();
  }
  return true;
}

void Reduction::remove_options(int node, const std::vector<char>& removed) {
  std::vector<int> kept;
  for (std::size_t s = 0; s < removed.size(); ++s) {
    if (!removed[s]) kept.push_back(static_cast<int>(s));
  }
  if (kept.size() < removed.size()) keep_options(node, kept);
}

int Reduction::option_left(int node, std::int32_t original) const {
  const std::span<const int> left = nodes_[node].original;
  const auto found = std::lower_bound(left.begin(), left.end(), original);
  return found != left.end() && *found == original ? static_cast<int>(found - left.begin())
                                                   : -1;
}

bool Reduction::restrict_options() {
  std::vector<int> queue(nodes_.size());
  for (int i = 0; i < nodes(); ++i) queue[i] = i;
  std::vector<char> queued(nodes_.size(), 1);
  std::vector<int> edges, kept;
  std::unordered_map<int, std::vector<char>>
      supported;  // per oriented table: rows with a partner
  for (std::size_t next = 0; next < queue.size(); ++next) {
    const int v = queue[next];
    queued[v] = 0;
    if (!nodes_[v].alive) continue;
    live_edges(v, edges);
    const int k = static_cast<int>(nodes_[v].cost.size());
    std::vector<char> allowed(k);
    for (int s = 0; s < k; ++s) allowed[s] = nodes_[v].cost[s] != kNotAllowed;
    for (int e : edges) {
      if (!tables_.has_infinity(edges_[e].table)) continue;
      const int table = oriented(e, v);
      auto [found, inserted] = supported.try_emplace(table);
      if (inserted) {
        found->second.assign(k, 0);
        const int cols = tables_.cols(table);
        const double* cost = tables_.data(table);
        for (int s = 0; s < k; ++s) {
          for (int c = 0; c < cols && !found->second[s]; ++c) {
            found->second[s] = cost[static_cast<std::size_t>(s) * cols + c] != kNotAllowed;
          }
        }
      }
      for (int s = 0; s < k; ++s) allowed[s] &= found->second[s];
    }
    kept.clear();
    for (int s = 0; s < k; ++s) {
      if (allowed[s]) kept.push_back(s);
    }
    if (kept.empty()) {
      diagnosis_ = "node " + std::to_string(v) + " has no allowed option";
      return false;
    }
    if (static_cast<int>(kept.size()) == k) continue;
    keep_options(v, kept);
    for (int e : edges) {
      const int u = other(e, v);
      if (!queued[u] && tables_.has_infinity(edges_[e].table)) {
        queued[u] = 1;
        queue.push_back(u);
      }
    }
  }
  return true;
}

void Reduction::fold_single_options() {
  std::vector<int> edges;
  for (int v = 0; v < nodes(); ++v) {
    Node& node = nodes_[v];
    if (!node.alive || node.cost.size() != 1) continue;
    live_edges(v, edges);
    for (int e : edges) {
      Node& neighbour = nodes_[other(e, v)];
      const double* row = tables_.data(oriented(e, v));
      for (std::size_t s = 0; s < neighbour.cost.size(); ++s) neighbour.cost[s] += row[s];
      drop_edge(e);
    }
    constant_ += node.cost[0];
    magnitude_ += std::abs(node.cost[0]);
    node.alive = false;
  }
}

bool Reduction::remove_dominated() {
  bool any = false;
  std::vector<int> edges, kept;
  std::vector<const double*> excess;
  if (dominance_current_.empty()) dominance_current_.assign(nodes_.size(), 0);
  for (int v = 0; v < nodes(); ++v) {
    Node& node = nodes_[v];
    const int k = static_cast<int>(node.cost.size());
    if (!node.alive || k == 1 || dominance_current_[v]) continue;
    dominance_current_[v] = 1;
    live_edges(v, edges);
    // A node with very many options or neighbours would cost more than it gives.
    if (static_cast<double>(k) * k * static_cast<double>(edges.size()) > 1e7) continue;
    excess.clear();
    for (int e : edges) {
      const int table = oriented(e, v);
      if (static_cast<double>(tables_.size(table)) * k > 2e6) break;
      excess.push_back(tables_.largest_excess(table));
    }
    if (excess.size() != edges.size()) continue;
    std::vector<char> gone(k, 0);
    for (int t = 0; t < k; ++t) {
      for (int s = 0; s < k && !gone[t]; ++s) {
        if (s == t || gone[s]) continue;
        double cost = node.cost[s];
        const double limit = node.cost[t];
        std::size_t i = 0;
        for (; i < excess.size() && cost != kNotAllowed; ++i) {
          cost += excess[i][static_cast<std::size_t>(s) * k + t];
        }
        if (!(cost <= limit) || cost == kNotAllowed) continue;
        gone[t] = std::all_of(node.memory.begin(), node.memory.end(), [&](const Piece& piece) {
          return piece.bytes[s] <= piece.bytes[t];
        });
      }
    }
    kept.clear();
    for (int s = 0; s < k; ++s) {
      if (!gone[s]) kept.push_back(s);
    }
    if (static_cast<int>(kept.size()) == k) continue;
    keep_options(v, kept);
    for (int e : edges) dominance_current_[other(e, v)] = 0;
    any = true;
  }
  return any;
}

void Reduction::eliminate(double largest_product) {
  // Cheapest first: (work, node). Entries may be stale; they are checked when taken.
  using Candidate = std::pair<double, int>;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  std::vector<int> edges;
  std::vector<double> message;
  const auto work = [&](int v) -> double {
    double product = static_cast<double>(nodes_[v].cost.size());
    live_edges(v, edges);
    for (int e : edges) product *= static_cast<double>(nodes_[other(e, v)].cost.size());
    return product;
  };
  const auto consider = [&](int v) {
    if (!nodes_[v].alive || nodes_[v].degree > 2) return;
    const double product = work(v);
    if (product <= largest_product) queue.emplace(product, v);
  };
  for (int v = 0; v < nodes(); ++v) consider(v);
  while (!queue.empty()) {
    const auto [product, v] = queue.top();
    queue.pop();
    Node& node = nodes_[v];
    if (!node.alive || node.degree > 2) continue;
    if (work(v) != product) {
      consider(v);
      continue;
    }
    Step step{v, {-1, -1}, {-1, -1}, {0, 0, node.history.size()}, node.cost};
    for (std::size_t n = 0; n < edges.size(); ++n) {
      step.neighbour[n] = other(edges[n], v);
      step.table[n] = oriented(edges[n], v);
      step.version[n] = nodes_[step.neighbour[n]].history.size();
      drop_edge(edges[n]);
    }
    node.alive = false;
    const int k = static_cast<int>(node.cost.size());
    if (edges.empty()) {
      const double least = minimum(node.cost.data(), k);
      constant_ += least;
      magnitude_ += std::abs(least);
    } else if (edges.size() == 1) {
      Node& neighbour = nodes_[step.neighbour[0]];
      message.resize(neighbour.cost.size());
      min_plus_vector(node.cost.data(), tables_.data(step.table[0]), k,
                      static_cast<int>(message.size()), message.data());
      for (std::size_t s = 0; s < message.size(); ++s) neighbour.cost[s] += message[s];
    } else {
      const int middle = tables_.add(1, k, node.cost.data());
      const int left = tables_.transpose(step.table[0]);
      add_edge(step.neighbour[0], step.neighbour[1],
               tables_.product(left, middle, step.table[1]));
    }
    for (int n : step.neighbour) {
      if (n >= 0) consider(n);
    }
    if (!dominance_current_.empty()) {
      for (int n : step.neighbour) {
        if (n >= 0) dominance_current_[n] = 0;
      }
    }
    steps_.push_back(std::move(step));
  }
}

std::span<const int> Reduction::options_at(int node, std::size_t version) const {
  const Node& owner = nodes_[node];
  return version < owner.history.size() ? owner.history[version]
                                        : std::span<const int>(owner.original);
}

std::vector<std::int32_t> Reduction::complete(const std::vector<int>& choice) const {
  std::vector<std::int32_t> result(nodes_.size());
  for (int i = 0; i < nodes(); ++i) {
    result[i] = nodes_[i].original[nodes_[i].alive ? choice[i] : 0];
  }
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    const double* column[2] = {nullptr, nullptr};
    std::size_t stride[2] = {0, 0};
    for (int n = 0; n < 2; ++n) {
      const int u = step->neighbour[n];
      if (u < 0) continue;
      const std::span<const int> options = options_at(u, step->version[n]);
      const auto found = std::lower_bound(options.begin(), options.end(), result[u]);
      column[n] = tables_.data(step->table[n]) + (found - options.begin());
      stride[n] = static_cast<std::size_t>(tables_.cols(step->table[n]));
    }
    std::size_t best = 0;
    double least = kNotAllowed;
    for (std::size_t s = 0; s < step->cost.size(); ++s) {
      double cost = step->cost[s];
      for (int n = 0; n < 2; ++n) {
        if (column[n]) cost += column[n][s * stride[n]];
      }
      if (cost < least) {
        least = cost;
        best = s;
      }
    }
    result[step->node] = options_at(step->node, step->version[2])[best];
  }
  return result;
}

std::vector<std::pair<std::int32_t, std::int32_t>> Reduction::merged() const {
  std::vector<std::pair<std::int32_t, std::int32_t>> result;
  for (const Step& step : steps_) result.emplace_back(step.node, step.neighbour[0]);
  return result;
}

}  // namespace autoshard::solver
