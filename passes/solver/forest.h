/// Large neighbourhoods: the best joint choice of nodes that induce a forest.
#pragma once

#include <cstdint>
#include <vector>

#include "solver/network.h"
#include "solver/random.h"

namespace autoshard::solver {

/// Picks nodes that induce a forest, holds all others fixed, and finds the best options of the
/// picked ones by dynamic programming. One move may change thousands of nodes at once.
///
/// Use: `clear`, then `grow` or `pick_all`, then `prepare`, then `solve` as often as wanted.
class ForestSearch {
 public:
  explicit ForestSearch(const Network& network);

  void clear();
  /// Adds `node` and nodes near it, until `largest` nodes are picked in all or nothing is
  /// left.
  void grow(int node, int largest, Random& random);
  /// Adds nodes in random order as long as they induce a forest.
  void pick_all(Random& random);
  const std::vector<int>& picked() const { return picked_; }

  /// Fixes the costs of the picked nodes' options next to the other nodes in `choice`.
  void prepare(const std::vector<double>& unary, const std::vector<int>& choice);
  /// Writes the cheapest options of the picked nodes to `result`. `extra`, if given, is added
  /// to the costs and indexed like `unary`. Where an option of `result` is as good, it stays.
  /// Returns the cost without `extra` of what was picked, to be compared with `cost`.
  double solve(const double* extra, std::vector<int>& result);
  /// Table entries visited by all calls of `solve` so far: work that every machine counts
  /// alike.
  std::int64_t work() const { return work_; }
  /// Cost of the picked nodes under `choice`, their edges included.
  double cost(const std::vector<int>& choice) const;

  /// All of the above over a forest from the whole network; `choice` never gets worse.
  void improve(const std::vector<double>& unary, Random& random, std::vector<int>& choice);

 private:
  bool is_picked(int node) const { return parent_set_[node] >= 0; }
  void add(int node);
  int root(int node);
  /// The second half of `solve`. Costs of options, with nothing of the picked ones next to
  /// them, become those of subtrees.
  void decide(std::vector<double>& subtree, std::vector<int>& result);

  const Network& network_;
  std::vector<int> picked_;      ///< in the forest, in order of picking
  std::vector<int> parent_set_;  ///< union-find over picked nodes; -1: not picked
  std::vector<int> order_;       ///< parents before children
  std::vector<int> parent_arc_;  ///< arc from the node to its parent, -1 for roots
  std::vector<double> base_;     ///< per option: own cost and edges to fixed neighbours
  std::vector<double> subtree_;  ///< per option: best cost of the subtree
  std::vector<double> message_;
  std::vector<int> shuffled_;
  std::vector<int> frontier_;
  std::vector<int> trees_;  ///< those next to the node that is added
  std::vector<int> mark_;
  int mark_count_ = 0;
  std::int64_t work_ = 0;
};

}  // namespace autoshard::solver
