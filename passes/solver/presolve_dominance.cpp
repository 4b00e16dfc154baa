// Options that another one is never worse than are removed.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "solver/kernels.h"
#include "solver/presolve.h"

namespace autoshard::solver {

bool remove_dominated(Reduction& reduction) {
  bool any = false;
  std::vector<int> edges, kept;
  std::vector<const double*> excess;
  std::vector<double> dearer;  // how much it may cost to have s in place of t, at [s * k + t]
  std::vector<char> gone;
  if (reduction.dominance_current.empty())
    reduction.dominance_current.assign(reduction.nodes.size(), 0);
  for (int v = 0; v < reduction.count(); ++v) {
    Reduction::Node& node = reduction.nodes[v];
    const int k = static_cast<int>(node.cost.size());
    if (!node.alive || k == 1 || reduction.dominance_current[v]) continue;
    reduction.dominance_current[v] = 1;
    reduction.live_edges(v, edges);
    // A node with very many options or neighbours would cost more than it gives.
    if (static_cast<double>(k) * k * static_cast<double>(edges.size()) > 1e7) continue;
    excess.clear();
    for (int e : edges) {
      const int table = reduction.oriented(e, v);
      if (static_cast<double>(reduction.tables.size(table)) * k > 2e6) break;
      excess.push_back(reduction.tables.largest_excess(table));
    }
    if (excess.size() != edges.size()) continue;
    dearer.resize(static_cast<std::size_t>(k) * k);
    for (int s = 0; s < k; ++s) {
      std::fill_n(dearer.begin() + static_cast<std::ptrdiff_t>(s) * k, k, node.cost[s]);
    }
    for (const double* more : excess) increase(dearer.data(), more, dearer.size());
    gone.assign(k, 0);
    for (int t = 0; t < k; ++t) {
      for (int s = 0; s < k && !gone[t]; ++s) {
        if (s == t || gone[s]) continue;
        const double cost = dearer[static_cast<std::size_t>(s) * k + t];
        if (!(cost <= node.cost[t]) || cost == kNotAllowed) continue;
        gone[t] = std::all_of(
            node.memory.begin(), node.memory.end(),
            [&](const Reduction::Piece& piece) { return piece.bytes[s] <= piece.bytes[t]; });
      }
    }
    kept.clear();
    for (int s = 0; s < k; ++s) {
      if (!gone[s]) kept.push_back(s);
    }
    if (static_cast<int>(kept.size()) == k) continue;
    reduction.keep_options(v, kept);
    for (int e : edges) reduction.dominance_current[reduction.other(e, v)] = 0;
    any = true;
  }
  return any;
}

}  // namespace autoshard::solver
