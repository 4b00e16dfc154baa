/// Exact presolve: a smaller network with the same best choices, and the way back.
///
///   read       one table per edge, weights multiplied in, parallel edges added up,
///              edges of a node with itself added to its costs
///   tie        a node whose option follows from a neighbour's (each option of the neighbour
///              allows exactly one) is merged into it
///   restrict   options without an allowed partner on some edge are removed, until none is
///   left;
///              nodes with one option are folded into their neighbours
///              With a memory limit, so do options too large even if all others are smallest.
///   dominate   option t goes if some s takes no more memory and is never dearer, whatever the
///              neighbours do:  cost(s) + sum_e max_c (T_e(s, c) - T_e(t, c)) <= cost(t)
///   eliminate  nodes with at most two neighbours are minimised out (without
///              memory limit only)
///
/// Each rule has a source file: reduction_ties.cpp, reduction_options.cpp,
/// reduction_memory.cpp, reduction_points.cpp, reduction_dominance.cpp,
/// reduction_elimination.cpp; what they share is in reduction.cpp.
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

class Reduction {
 public:
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

  /// Reads a problem that `check` has passed.
  explicit Reduction(const Problem& problem);
  /// Nodes refer to what the reduction holds.
  Reduction(const Reduction&) = delete;
  Reduction& operator=(const Reduction&) = delete;

  /// All that is exact with and without a memory limit, until nothing changes; false:
  /// infeasible.
  bool presolve();
  /// Removes the options marked in `removed`, indexed by node and option left.
  void remove_options(int node, const std::vector<char>& removed);
  /// The option left of `node` that stands for option `original` of the problem, or -1.
  int option_left(int node, std::int32_t original) const;

  /// False: some node has no option left; `diagnosis` says which.
  bool restrict_options();
  /// Folds nodes with one option into their neighbours.
  void fold_single_options();
  /// Merges nodes into neighbours that determine them; true if any was.
  bool merge_tied();
  /// Removes dominated options; true if any went.
  bool remove_dominated();
  /// Removes options that cannot fit; false: not even the smallest ones fit together.
  bool restrict_memory(bool& any);
  /// Minimises out nodes of degree <= 2, cheapest first, unless one costs more than
  /// `largest_product` operations.
  void eliminate(double largest_product = 2e7);

  /// Drops points that cannot be overfull unless a neighbouring one is; true if any went.
  ///
  /// Point t is implied by point u if  sum_i max_s (bytes_i(s) at t - bytes_i(s) at u)
  /// <= room(t) - room(u).  Only nodes whose memory changes between t and u count.
  bool drop_implied_points();

  /// Completes a choice of the nodes left (index into their options left; entries of other
  /// nodes are ignored) to all nodes and translates it into options of the problem.
  std::vector<std::int32_t> complete(const std::vector<int>& choice) const;

  int nodes() const { return static_cast<int>(nodes_.size()); }
  const Node& node(int i) const { return nodes_[i]; }
  const std::vector<Edge>& edges() const { return edges_; }
  TableStore& tables() { return tables_; }
  const TableStore& tables() const { return tables_; }
  /// Cost of what was folded and eliminated.
  double constant() const { return constant_; }
  /// Sum of the magnitudes added into any cost, for the rounding error of a bound.
  double magnitude() const { return magnitude_; }
  const std::string& diagnosis() const { return diagnosis_; }
  void diagnose(std::string text) { diagnosis_ = std::move(text); }

  /// Compressed points: the live set is maximal there, and none is implied by others. Their
  /// times in the problem.
  const std::vector<std::int64_t>& points() const { return points_; }
  /// Bytes left at every compressed point when every node takes its smallest option.
  const std::vector<std::int64_t>& room() const { return room_; }
  /// After `merge_tied` alone: (node, the one it went into), in order.
  std::vector<std::pair<std::int32_t, std::int32_t>> merged() const;

 private:
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
  void read_memory(const Problem& problem);
  /// Moves what all options of a piece share into `room_`; drops pieces without difference.
  void level_memory(Node& node);
  void add_edge(int a, int b, int table);
  void drop_edge(int e);
  void keep_options(int node, const std::vector<int>& kept);
  /// Table of edge e with the options of `node` as rows.
  int oriented(int e, int node);
  int other(int e, int node) const { return edges_[e].a == node ? edges_[e].b : edges_[e].a; }
  std::span<const int> options_at(int node, std::size_t version) const;
  int& next_edge(int e, int node) { return edges_[e].next[edges_[e].a == node ? 0 : 1]; }
  void live_edges(int node, std::vector<int>& out);

  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  HashIndex edge_of_pair_;
  /// What the nodes refer to.
  std::vector<double> costs_;
  std::vector<int> originals_;
  std::deque<std::vector<int>> earlier_;
  TableStore tables_;
  std::vector<Step> steps_;
  std::vector<char> dominance_current_;
  std::vector<std::int64_t> points_;
  std::vector<std::int64_t> room_;
  double constant_ = 0;
  double magnitude_ = 0;
  std::string diagnosis_;
};

}  // namespace autoshard::solver
