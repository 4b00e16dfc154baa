/// What a search under a memory limit keeps from one round of presolve to the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "solver/memory.h"
#include "solver/network.h"
#include "solver/problem.h"
#include "solver/reduction.h"
#include "solver/run.h"

namespace autoshard::solver {

/// The best choice so far, the bound, and what presolve has left of the problem.
struct LimitedState {
  LimitedState(const Problem& problem, const Options& options, Run& run);

  /// Takes the start that the caller gave, if it fits.
  void take_start();
  /// Takes a choice of the problem if it costs less than the best one.
  void accept(std::vector<std::int32_t> choice, double cost);
  /// Nothing better than the best exists among what presolve and the bound left.
  void finish_exhausted();
  /// A bound on what is left bounds everything, up to the best cost: what was removed is no
  /// better.
  void raise_bound(double bound);
  /// The best choice is as close to the bound as was asked for.
  bool proven() const;
  /// `accept` for a choice of the network, which must fit.
  void accept_reduced(const Network& network, const std::vector<int>& choice);
  /// The best known choice in terms of the network, as far as its options are left.
  std::vector<int> reduced_best(const Network& network,
                                const std::vector<std::int32_t>& choice, bool& complete) const;
  /// Removes options that can only be part of choices as dear as the best. Returns how many.
  std::size_t remove_hopeless(const Network& network, double bound,
                              const std::vector<double>& surplus);
  /// In the time of the problem: where least is left if all nodes take their smallest option.
  std::int64_t tightest_point() const;
  /// Tries every choice of a network with few of them.
  void enumerate(const Network& network, const MemoryModel& memory);

  const Problem& problem;
  const Options& options;
  Run& run;
  /// All costs are whole numbers.
  const bool integral;
  Reduction reduction;
  Solution solution;
  /// By time in the problem, from the stage before.
  std::vector<std::pair<std::int64_t, double>> prices;
  /// Nodes, with the options of theirs that were ruled out.
  std::vector<std::pair<int, std::vector<char>>> hopeless;
  std::int64_t epoch = 0;
  int stages = 0;
  std::int64_t fullest_point = 0;
  /// Nothing is left that could be better.
  bool exhausted = false;
  /// The best choice has changed since the last trace.
  bool fresh = false;
};

}  // namespace autoshard::solver
