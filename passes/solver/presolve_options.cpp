// Options without an allowed partner are removed, nodes with one option are folded.
#include <string>
#include <unordered_map>
#include <vector>

#include "solver/presolve.h"

namespace autoshard::solver {

bool restrict_options(Reduction& reduction) {
  std::vector<int> queue(reduction.nodes.size());
  for (int i = 0; i < reduction.count(); ++i) queue[i] = i;
  std::vector<char> queued(reduction.nodes.size(), 1);
  std::vector<int> edges, kept;
  std::vector<char> allowed;
  std::unordered_map<int, std::vector<char>>
      supported;  // per oriented table: rows with a partner
  for (std::size_t next = 0; next < queue.size(); ++next) {
    const int v = queue[next];
    queued[v] = 0;
    if (!reduction.nodes[v].alive) continue;
    reduction.live_edges(v, edges);
    const int k = static_cast<int>(reduction.nodes[v].cost.size());
    allowed.resize(k);
    for (int s = 0; s < k; ++s) allowed[s] = reduction.nodes[v].cost[s] != kNotAllowed;
    for (int e : edges) {
      if (!reduction.tables.has_infinity(reduction.edges[e].table)) continue;
      const int table = reduction.oriented(e, v);
      auto [found, inserted] = supported.try_emplace(table);
      if (inserted) {
        found->second.assign(k, 0);
        const int cols = reduction.tables.cols(table);
        const double* cost = reduction.tables.data(table);
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
      reduction.diagnosis = "node " + std::to_string(v) + " has no allowed option";
      return false;
    }
    if (static_cast<int>(kept.size()) == k) continue;
    reduction.keep_options(v, kept);
    for (int e : edges) {
      const int u = reduction.other(e, v);
      if (!queued[u] && reduction.tables.has_infinity(reduction.edges[e].table)) {
        queued[u] = 1;
        queue.push_back(u);
      }
    }
  }
  return true;
}

void fold_single_options(Reduction& reduction) {
  std::vector<int> edges;
  for (int v = 0; v < reduction.count(); ++v) {
    Reduction::Node& node = reduction.nodes[v];
    if (!node.alive || node.cost.size() != 1) continue;
    reduction.live_edges(v, edges);
    for (int e : edges) {
      Reduction::Node& neighbour = reduction.nodes[reduction.other(e, v)];
      const double* row = reduction.tables.data(reduction.oriented(e, v));
      for (std::size_t s = 0; s < neighbour.cost.size(); ++s) neighbour.cost[s] += row[s];
      reduction.drop_edge(e);
    }
    reduction.constant += node.cost[0];
    node.alive = false;
  }
}

}  // namespace autoshard::solver
