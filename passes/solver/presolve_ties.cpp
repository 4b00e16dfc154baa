// Nodes that follow from a neighbour are merged into it.
#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "solver/presolve.h"

namespace autoshard::solver {

namespace {

/// For every row of the table the one column that is allowed; false: some row has none or
/// several.
bool follow(const TableStore& tables, int table, std::vector<int>& follows) {
  const int rows = tables.rows(table), cols = tables.cols(table);
  const double* cost = tables.data(table);
  follows.assign(rows, -1);
  for (int s = 0; s < rows; ++s) {
    for (int c = 0; c < cols; ++c) {
      if (cost[static_cast<std::size_t>(s) * cols + c] == kNotAllowed) continue;
      if (follows[s] >= 0) return false;
      follows[s] = c;
    }
    if (follows[s] < 0) return false;
  }
  return true;
}

/// Merges v into u along edge e: option `follows[s]` of v goes with option s of u.
void merge(Reduction& reduction, int e, int u, int v, const std::vector<int>& follows) {
  TableStore& tables = reduction.tables;
  Reduction::Node& from = reduction.nodes[v];
  Reduction::Node& into = reduction.nodes[u];
  const int table = reduction.oriented(e, u);
  const int rows = tables.rows(table), cols = tables.cols(table);
  reduction.steps.push_back({v,
                             {u, -1},
                             {tables.transpose(table), -1},
                             {into.history.size(), 0, from.history.size()},
                             from.cost});
  for (int s = 0; s < rows; ++s) {
    into.cost[s] += tables.data(table)[static_cast<std::size_t>(s) * cols + follows[s]] +
                    from.cost[follows[s]];
  }
  reduction.drop_edge(e);
  std::vector<int> edges;
  reduction.live_edges(v, edges);
  const int list = tables.add_list(follows);
  for (int moved : edges) {
    const int w = reduction.other(moved, v);
    const int moved_table = tables.selected(reduction.oriented(moved, v), list, -1);
    reduction.drop_edge(moved);
    reduction.add_edge(u, w, moved_table);
    reduction.dominate_again(w);
  }
  for (const Reduction::Piece& piece : from.memory) {
    Reduction::Piece copy{piece.first, piece.last, std::vector<std::int64_t>(rows)};
    for (int s = 0; s < rows; ++s) copy.bytes[s] = piece.bytes[follows[s]];
    into.memory.push_back(std::move(copy));
  }
  from.memory.clear();
  reduction.level_memory(into);
  from.alive = false;
  reduction.dominate_again(u);
}

}  // namespace

bool merge_tied(Reduction& reduction) {
  bool any = false;
  std::vector<int> follows;
  // Merging adds edges, which are looked at, too.
  for (int e = 0; e < static_cast<int>(reduction.edges.size()); ++e) {
    const Reduction::Edge edge = reduction.edges[e];
    if (!edge.alive) continue;
    const TableStore& tables = reduction.tables;
    const int shorter = std::min(tables.rows(edge.table), tables.cols(edge.table));
    if (shorter > 1 && !tables.has_infinity(edge.table)) continue;
    for (int side = 0; side < 2; ++side) {
      const int u = side == 0 ? edge.a : edge.b;
      const int v = side == 0 ? edge.b : edge.a;
      const Reduction::Node& kept = reduction.nodes[u];
      const Reduction::Node& gone = reduction.nodes[v];
      // Where two nodes determine each other, the one with fewer edges goes.
      if (side == 0 && gone.degree > kept.degree && kept.cost.size() == gone.cost.size()) {
        continue;
      }
      if (!follow(tables, reduction.oriented(e, u), follows)) continue;
      merge(reduction, e, u, v, follows);
      any = true;
      break;
    }
  }
  return any;
}

}  // namespace autoshard::solver
