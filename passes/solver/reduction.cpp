#include "solver/reduction.h"

#include <algorithm>
#include <cmath>
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
    any |= drop_implied_points();
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
