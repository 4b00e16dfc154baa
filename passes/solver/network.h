/// The network that search and bounds work on: compact, frozen after presolve.
#pragma once

#include <cstdint>
#include <vector>

#include "solver/reduction.h"

namespace autoshard::solver {

/// Nodes keep the order of the problem, which for planning networks is program order.
struct Network {
  /// One end of an edge, as its node sees it.
  struct Arc {
    std::int32_t neighbour;
    std::int32_t edge;
    std::int32_t cols;          ///< options of the neighbour
    const double* out;          ///< rows: options of the node, columns: of the neighbour
    const double* in;           ///< the transpose
    std::int64_t to_neighbour;  ///< where messages to the neighbour are stored
    std::int64_t to_node;       ///< where messages from it are stored
    std::int32_t back;          ///< the arc of the neighbour for the same edge
  };
  struct Edge {
    std::int32_t a, b;
    std::int32_t table;
  };

  std::vector<std::int32_t> source;    ///< node of the reduction
  std::vector<std::int32_t> offset;    ///< of options, size nodes + 1
  std::vector<double> unary;           ///< per option
  std::vector<std::int32_t> original;  ///< per option: its index in the problem
  std::vector<Edge> edges;             ///< a < b
  std::vector<std::int32_t> arc_offset;
  std::vector<Arc> arcs;                 ///< of each node, by increasing neighbour
  std::vector<std::int32_t> neighbours;  ///< by arc: often all that is asked of it
  std::vector<std::int32_t> arc_middle;  ///< by node: its first arc to a larger neighbour
  std::int64_t message_size = 0;
  double constant = 0;

  int nodes() const { return static_cast<int>(source.size()); }
  int options(int node) const { return offset[node + 1] - offset[node]; }
  int degree(int node) const { return arc_offset[node + 1] - arc_offset[node]; }

  /// Cost of a choice, with `unary` in place of the network's own.
  double cost(const std::vector<int>& choice, const std::vector<double>& unary) const;
};

/// Freezes what is left of `reduction`, which must outlive the network.
Network freeze(Reduction& reduction);

}  // namespace autoshard::solver
