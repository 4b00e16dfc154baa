// Nodes that follow from a neighbour are merged into it.
#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "solver/reduction.h"

namespace autoshard::solver {

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
      // Where two nodes determine each other, the one with fewer edges goes.
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

}  // namespace autoshard::solver
