// Options without an allowed partner are removed, nodes with one option are folded.
#include <cmath>
#include <string>
#include <unordered_map>
#include <vector>

#include "solver/reduction.h"

namespace autoshard::solver {

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

}  // namespace autoshard::solver
