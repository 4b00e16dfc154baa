// Options that another one is never worse than are removed.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "solver/reduction.h"

namespace autoshard::solver {

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

}  // namespace autoshard::solver
