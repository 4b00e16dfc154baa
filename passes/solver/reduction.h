/// A network that is made smaller, and the way back to the problem's own options.
///
/// Reading a problem: one table per edge, weights multiplied in, parallel edges added up,
/// edges of a node with itself added to its costs. The rules that make it smaller are in
/// presolve.h.
///
/// Products of shared tables are computed once (TableStore), so a network of equal layers
/// costs little more than one layer.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/hash_index.h"
#include "solver/problem.h"
#include "solver/tables.h"

namespace autoshard::solver {

struct Reduction {
  struct Edge {
    int a, b;   ///< a < b
    int table;  ///< rows: options of a
    bool alive;
    /// The edges of `a` and of `b` that come next, or -1.
    int next[2] = {-1, -1};
  };
  /// Memory above the smallest option's, at the compressed points [first, last).
  struct Piece {
    int first, last;
    std::vector<std::int64_t> bytes;  ///< per option left, smallest is 0, not all 0
  };
  struct Node {
    std::span<double> cost;
    std::vector<Piece> memory;
    /// Option index in the problem of every option left.
    std::span<int> original;
    /// Earlier states of `original`, for steps of elimination that refer to them.
    std::vector<std::span<const int>> history;
    /// Its edges, of which some may be dead, in the order in which they came.
    int first_edge = -1, last_edge = -1;
    int degree = 0;
    bool alive = true;
  };
  /// A node that went into one neighbour or two, for the way back.
  struct Step {
    int node;
    int neighbour[2];
    int table[2];  ///< rows: options of `node`
    /// Which state of the options of `neighbour[i]` (and, last, of `node`) the table speaks
    /// of.
    std::size_t version[3];
    /// Costs of `node`, which keeps them when it is gone.
    std::span<const double> cost;
  };

  /// Reads a problem that `check` has passed.
  explicit Reduction(const Problem& problem);
  /// Nodes refer to what the reduction holds.
  Reduction(const Reduction&) = delete;
  Reduction& operator=(const Reduction&) = delete;

  /// Nodes of the problem, those that are gone included.
  int count() const { return static_cast<int>(nodes.size()); }

  /// Adds an edge, or adds its table to the one that is there.
  void add_edge(int a, int b, int table);
  void drop_edge(int e);
  /// Edges of `node` that are left, into `out`.
  void live_edges(int node, std::vector<int>& out);
  /// Table of edge e with the options of `node` as rows.
  int oriented(int e, int node);
  int other(int e, int node) const { return edges[e].a == node ? edges[e].b : edges[e].a; }

  /// Keeps these of the options left, in growing order.
  void keep_options(int node, const std::vector<int>& kept);
  /// Removes the options marked in `removed`, indexed by node and option left.
  void remove_options(int node, const std::vector<char>& removed);
  /// The option left of `node` that stands for option `original` of the problem, or -1.
  int option_left(int node, std::int32_t original) const;
  /// Moves what all options of a piece share into `room`; drops pieces without difference.
  void level_memory(Node& node);
  /// Something about `node` has changed, by which its options may dominate each other.
  void dominate_again(int node);

  /// Completes a choice of the nodes left (index into their options left; entries of other
  /// nodes are ignored) to all nodes and translates it into options of the problem.
  std::vector<std::int32_t> complete(const std::vector<int>& choice) const;
  /// After `merge_tied` alone: (node, the one it went into), in order.
  std::vector<std::pair<std::int32_t, std::int32_t>> merged() const;

  std::vector<Node> nodes;
  std::vector<Edge> edges;
  TableStore tables;
  /// Compressed points: the live set is maximal there, and none is implied by others. Their
  /// times in the problem.
  std::vector<std::int64_t> points;
  /// Bytes left at every compressed point when every node takes its smallest option.
  std::vector<std::int64_t> room;
  /// Cost of what was folded and eliminated.
  double constant = 0;
  std::vector<Step> steps;
  /// By node: no option left dominates another. Empty until that has been asked.
  std::vector<char> dominance_current;
  /// Why nothing is feasible.
  std::string diagnosis;

 private:
  void read_memory(const Problem& problem);
  std::span<const int> options_at(int node, std::size_t version) const;
  int& next_edge(int e, int node) { return edges[e].next[edges[e].a == node ? 0 : 1]; }

  HashIndex edge_of_pair_;
  /// What the nodes refer to.
  std::vector<double> costs_;
  std::vector<int> originals_;
  std::deque<std::vector<int>> earlier_;
};

}  // namespace autoshard::solver
