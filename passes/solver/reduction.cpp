#include "solver/reduction.h"

#include <algorithm>
#include <cstddef>
#include <utility>

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
  nodes.resize(problem.nodes());
  costs_ = problem.option_cost;
  originals_.resize(costs_.size());
  for (int i = 0; i < problem.nodes(); ++i) {
    Node& node = nodes[i];
    const auto count = static_cast<std::size_t>(problem.option_count(i));
    node.cost = {costs_.data() + problem.option_offset[i], count};
    node.original = {originals_.data() + problem.option_offset[i], count};
    for (std::size_t s = 0; s < node.original.size(); ++s) {
      node.original[s] = static_cast<int>(s);
    }
  }
  if (problem.memory_limit) read_memory(problem);
  std::vector<int> stored(problem.tables.size(), -1);
  edges.reserve(problem.edge_from.size() + problem.edge_from.size() / 2);
  for (int e = 0; e < problem.edges(); ++e) {
    const int t = problem.edge_table[e];
    if (stored[t] < 0) {
      const Table& table = problem.tables[t];
      stored[t] = tables.add(table.rows, table.cols, table.cost.data());
    }
    const double weight = problem.edge_weight.empty() ? 1.0 : problem.edge_weight[e];
    const int table = tables.scaled(stored[t], weight);
    const int a = problem.edge_from[e], b = problem.edge_to[e];
    if (a == b) {
      const int k = tables.rows(table);
      for (int s = 0; s < k; ++s) {
        nodes[a].cost[s] += tables.data(table)[static_cast<std::size_t>(s) * k + s];
      }
    } else {
      add_edge(a, b, table);
    }
  }
}

void Reduction::read_memory(const Problem& problem) {
  // The live set grows at firsts and shrinks at lasts; it is maximal at a first that is
  // followed by a last. Every interval keeps at least one such point.
  std::vector<std::pair<std::int64_t, bool>> events;  // (time, is a first); lasts sort first
  for (int i = 0; i < problem.nodes(); ++i) {
    if (problem.live_first[i] >= problem.live_last[i]) continue;
    events.emplace_back(problem.live_first[i], true);
    events.emplace_back(problem.live_last[i], false);
  }
  std::sort(events.begin(), events.end());
  for (std::size_t e = 0; e + 1 < events.size(); ++e) {
    if (events[e].second && !events[e + 1].second) points.push_back(events[e].first);
  }
  room.assign(points.size(), *problem.memory_limit);
  const auto position = [this](std::int64_t time) {
    return static_cast<int>(std::lower_bound(points.begin(), points.end(), time) -
                            points.begin());
  };
  for (int i = 0; i < problem.nodes(); ++i) {
    if (problem.live_first[i] >= problem.live_last[i]) continue;
    const auto begin = problem.option_memory.begin() + problem.option_offset[i];
    nodes[i].memory.push_back({position(problem.live_first[i]),
                               position(problem.live_last[i]),
                               {begin, begin + problem.option_count(i)}});
  }
  // Through differences: one sweep for all nodes.
  std::vector<std::int64_t> change(points.size() + 1, 0);
  for (Node& node : nodes) {
    for (Piece& piece : node.memory) {
      const std::int64_t least = *std::min_element(piece.bytes.begin(), piece.bytes.end());
      change[piece.first] += least;
      change[piece.last] -= least;
      for (std::int64_t& bytes : piece.bytes) bytes -= least;
    }
    level_memory(node);
  }
  std::int64_t used = 0;
  for (std::size_t t = 0; t < room.size(); ++t) room[t] -= used += change[t];
}

void Reduction::level_memory(Node& node) {
  for (Piece& piece : node.memory) {
    const std::int64_t least = *std::min_element(piece.bytes.begin(), piece.bytes.end());
    if (least == 0) continue;
    for (std::int64_t& bytes : piece.bytes) bytes -= least;
    for (int t = piece.first; t < piece.last; ++t) room[t] -= least;
  }
  std::erase_if(node.memory, [](const Piece& piece) {
    return std::all_of(piece.bytes.begin(), piece.bytes.end(),
                       [](std::int64_t bytes) { return bytes == 0; });
  });
}

void Reduction::add_edge(int a, int b, int table) {
  if (a > b) {
    std::swap(a, b);
    table = tables.transpose(table);
  }
  const std::uint64_t hash = hash_of_pair(a, b);
  const int found = edge_of_pair_.find(
      hash, [&](int e) { return edges[e].alive && edges[e].a == a && edges[e].b == b; });
  if (found >= 0) {
    edges[found].table = tables.sum(edges[found].table, table);
    return;
  }
  const int added = static_cast<int>(edges.size());
  edge_of_pair_.insert(hash, added);
  edges.push_back({a, b, table, true});
  for (int end : {a, b}) {
    Node& node = nodes[end];
    (node.last_edge < 0 ? node.first_edge : next_edge(node.last_edge, end)) = added;
    node.last_edge = added;
    ++node.degree;
  }
}

void Reduction::drop_edge(int e) {
  edges[e].alive = false;
  --nodes[edges[e].a].degree;
  --nodes[edges[e].b].degree;
}

int Reduction::oriented(int e, int node) {
  return edges[e].a == node ? edges[e].table : tables.transpose(edges[e].table);
}

void Reduction::live_edges(int node, std::vector<int>& out) {
  out.clear();
  Node& owner = nodes[node];
  int last = -1;
  // Dead ones are taken out on the way.
  for (int e = owner.first_edge; e >= 0; e = next_edge(e, node)) {
    if (!edges[e].alive) continue;
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
  Node& changed = nodes[node];
  const int list = tables.add_list(kept);
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
  std::vector<int> touching;
  live_edges(node, touching);
  for (int e : touching) {
    Edge& edge = edges[e];
    edge.table = edge.a == node ? tables.selected(edge.table, list, -1)
                                : tables.selected(edge.table, -1, list);
  }
}

void Reduction::remove_options(int node, const std::vector<char>& removed) {
  std::vector<int> kept;
  for (std::size_t s = 0; s < removed.size(); ++s) {
    if (!removed[s]) kept.push_back(static_cast<int>(s));
  }
  if (kept.size() < removed.size()) keep_options(node, kept);
}

int Reduction::option_left(int node, std::int32_t original) const {
  const std::span<const int> left = nodes[node].original;
  const auto found = std::lower_bound(left.begin(), left.end(), original);
  return found != left.end() && *found == original ? static_cast<int>(found - left.begin())
                                                   : -1;
}

void Reduction::dominate_again(int node) {
  if (!dominance_current.empty()) dominance_current[node] = 0;
}

std::span<const int> Reduction::options_at(int node, std::size_t version) const {
  const Node& owner = nodes[node];
  return version < owner.history.size() ? owner.history[version]
                                        : std::span<const int>(owner.original);
}

std::vector<std::int32_t> Reduction::complete(const std::vector<int>& choice) const {
  std::vector<std::int32_t> result(nodes.size());
  for (int i = 0; i < count(); ++i) {
    result[i] = nodes[i].original[nodes[i].alive ? choice[i] : 0];
  }
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const double* column[2] = {nullptr, nullptr};
    std::size_t stride[2] = {0, 0};
    for (int n = 0; n < 2; ++n) {
      const int u = step->neighbour[n];
      if (u < 0) continue;
      const std::span<const int> options = options_at(u, step->version[n]);
      const auto found = std::lower_bound(options.begin(), options.end(), result[u]);
      column[n] = tables.data(step->table[n]) + (found - options.begin());
      stride[n] = static_cast<std::size_t>(tables.cols(step->table[n]));
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
  for (const Step& step : steps) result.emplace_back(step.node, step.neighbour[0]);
  return result;
}

}  // namespace autoshard::solver
