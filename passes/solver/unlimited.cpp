#include "solver/unlimited.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "solver/elimination.h"
#include "solver/forest.h"
#include "solver/messages.h"
#include "solver/network.h"
#include "solver/presolve.h"
#include "solver/random.h"

namespace autoshard::solver {
namespace {

/// Where message passing has not closed the gap after so many rounds, networks that take so
/// many times `Options::exact_operations` are solved exactly.
constexpr std::int64_t rounds_before_elimination = 30;
constexpr double more_operations = 5;
/// Rounds without progress after which a search without a time limit ends.
constexpr int patience = 12;

/// All presolve rules, until no option is dominated; false: infeasible.
bool presolve_and_eliminate(Reduction& reduction) {
  do {
    if (!restrict_options(reduction)) return false;
    fold_single_options(reduction);
    merge_tied(reduction);
    remove_dominated(reduction);
    fold_single_options(reduction);
    eliminate(reduction);
    if (!restrict_options(reduction)) return false;
    fold_single_options(reduction);
  } while (remove_dominated(reduction));
  return true;
}

/// The best choice so far of what presolve has left, and a bound on it.
class Unlimited {
 public:
  Unlimited(const Problem& problem, const Options& options, Run& run, Reduction& reduction)
      : problem_(problem),
        options_(options),
        run_(run),
        reduction_(reduction),
        network_(freeze(reduction)),
        best_(network_.nodes(), 0),
        bound_(network_.nodes() == 0 ? network_.constant : -kNotAllowed) {
    const CostScale scale = cost_scale(problem);
    integral_ = scale.is_integral;
    // Each cost that elimination forms is a sum of at most this many terms.
    if (!integral_) {
      margin_ = 3.0 * (problem.nodes() + problem.edges()) *
                std::numeric_limits<double>::epsilon() * scale.magnitude;
    }
    if (options.start) {
      solution_.cost = cost_of(problem, *options.start);
      if (solution_.cost < kNotAllowed) solution_.choice = *options.start;
    }
  }

  Solution solve() {
    if (network_.nodes() == 0) {
      publish();
      solution_.stop_reason = StopReason::kOptimal;
    } else if (eliminate(options_.exact_operations)) {
      publish();
      solution_.stop_reason =
          best_cost_ < kNotAllowed ? StopReason::kOptimal : StopReason::kInfeasible;
    } else {
      search();
    }
    solution_.trace = run_.take_trace();
    solution_.seconds = run_.seconds();
    return std::move(solution_);
  }

 private:
  std::vector<std::int32_t> full_choice() const {
    std::vector<int> choice(reduction_.count(), 0);
    for (int i = 0; i < network_.nodes(); ++i) choice[network_.source[i]] = best_[i];
    return reduction_.complete(choice);
  }
  double bound_below(double cost) const {
    const double lower = std::min(bound_ - margin_, cost);
    return integral_ ? std::ceil(lower - 1e-9) : lower;
  }
  void publish();
  void report();
  bool consider(const std::vector<int>& choice);
  bool eliminate(double most_operations);
  std::vector<int> start_left() const;
  bool is_close_enough();
  bool round(Messages& messages, ForestSearch& forest, Random& random, bool decode);
  void search();

  const Problem& problem_;
  const Options& options_;
  Run& run_;
  Reduction& reduction_;
  const Network network_;
  Solution solution_;
  /// The best choice for the network and the last one.
  std::vector<int> best_, current_;
  double best_cost_ = kNotAllowed;
  double bound_;
  /// The rounding error of costs.
  double margin_ = 0;
  /// All costs are whole numbers.
  bool integral_ = false;
};

void Unlimited::publish() {
  std::vector<std::int32_t> full = full_choice();
  const double cost = cost_of(problem_, full);
  if (cost < solution_.cost) {
    solution_.cost = cost;
    solution_.choice = std::move(full);
  }
  solution_.lower_bound = bound_below(solution_.cost);
  run_.trace(solution_.cost, solution_.lower_bound);
}

/// When it is called depends on the machine: the solution must not depend on it.
void Unlimited::report() {
  const double cost = std::min(solution_.cost, cost_of(problem_, full_choice()));
  run_.trace(cost, bound_below(cost));
}

bool Unlimited::consider(const std::vector<int>& choice) {
  const double cost = network_.cost(choice, network_.unary);
  if (!(cost < best_cost_)) return false;
  best_ = choice;
  best_cost_ = cost;
  return true;
}

/// Solves the network exactly if that takes no more operations.
bool Unlimited::eliminate(double most_operations) {
  const auto exact = eliminate_all(network_, network_.unary, most_operations);
  if (!exact) return false;
  consider(*exact);
  bound_ = best_cost_;
  return true;
}

/// The start that the caller gave, where it still exists in the network.
std::vector<int> Unlimited::start_left() const {
  std::vector<int> start(network_.nodes(), 0);
  for (int i = 0; i < network_.nodes(); ++i) {
    const std::span<const int> left = reduction_.nodes[network_.source[i]].original;
    const auto found =
        std::lower_bound(left.begin(), left.end(), (*options_.start)[network_.source[i]]);
    start[i] = found == left.end() ? 0 : static_cast<int>(found - left.begin());
  }
  return start;
}

/// Whether the best choice is as close to the bound as was asked for; says so in the solution.
bool Unlimited::is_close_enough() {
  if (!(best_cost_ < kNotAllowed)) return false;
  const double cost = std::min(best_cost_, solution_.cost);
  const double lower = integral_ ? std::ceil(bound_ - 1e-9 * std::abs(bound_) - 1e-9) : bound_;
  if (!(cost - lower <= std::max(options_.gap * std::abs(cost), margin_))) return false;
  solution_.stop_reason =
      cost - lower <= margin_ ? StopReason::kOptimal : StopReason::kConverged;
  return true;
}

/// One round of message passing there and back, with `decode` a choice from each; true if one
/// is better than the best.
bool Unlimited::round(Messages& messages, ForestSearch& forest, Random& random, bool decode) {
  const std::vector<double>& unary = network_.unary;
  bool improved = false;
  for (const bool forward : {true, false}) {
    const double reached = messages.pass(unary, forward, decode ? &current_ : nullptr);
    bound_ = std::max(bound_, reached);
    if (!decode) continue;
    forest.improve(unary, random, current_);
    improved |= consider(current_);
  }
  if (best_cost_ < kNotAllowed) {
    current_ = best_;
    forest.improve(unary, random, current_);
    improved |= consider(current_);
  }
  return improved;
}

void Unlimited::search() {
  const std::vector<double>& unary = network_.unary;
  KnownMessages* known = options_.known_messages;
  Messages messages = known ? Messages(network_, *known) : Messages(network_);
  ForestSearch forest(network_);
  Random random(options_.seed);
  current_.assign(network_.nodes(), 0);
  if (options_.start) {
    current_ = start_left();
    forest.improve(unary, random, current_);
    if (consider(current_)) publish();
  }
  double settled = -kNotAllowed;  // the bound some passes ago
  int idle = 0;
  for (std::int64_t iteration = 0;; ++iteration) {
    solution_.iterations = iteration;
    if (iteration > 0 && is_close_enough()) break;
    if (run_.should_stop(iteration, solution_.stop_reason)) break;
    if (iteration == rounds_before_elimination &&
        eliminate(more_operations * options_.exact_operations)) {
      continue;
    }
    if (idle >= patience && options_.seconds == kNotAllowed) {
      solution_.stop_reason = StopReason::kConverged;
      break;
    }
    bool improved = round(messages, forest, random, iteration % 2 == 0 || iteration > 6);
    // A bound that rises counts as progress while it closes a hundredth of the gap.
    const double least_rise = std::max(0.01 * (best_cost_ - bound_), 1e-9 * std::abs(bound_));
    if (bound_ > settled + least_rise || (settled == -kNotAllowed && bound_ > settled)) {
      settled = bound_;
      improved = true;
    }
    idle = improved ? 0 : idle + 1;
    if (run_.due()) report();
  }
  // What the passes reported is exact up to rounding; the answer is rounded to the safe side.
  const double reached = messages.pass(unary, true, nullptr);
  bound_ = std::max(
      bound_ - 1e-9 * std::abs(bound_),
      std::min(reached, messages.safe_bound(unary, messages.reparametrization(unary))));
  publish();
  if (known) *known = messages.known(problem_.nodes());
  if (solution_.cost == kNotAllowed && solution_.stop_reason == StopReason::kConverged) {
    solution_.diagnosis = "no allowed choice found; none is proven impossible";
  }
}

}  // namespace

Solution solve_unlimited(const Problem& problem, const Options& options, Run& run) {
  Reduction reduction(problem);
  if (presolve_and_eliminate(reduction))
    return Unlimited(problem, options, run, reduction).solve();
  Solution solution;
  solution.stop_reason = StopReason::kInfeasible;
  solution.lower_bound = kNotAllowed;
  solution.diagnosis = reduction.diagnosis;
  solution.seconds = run.seconds();
  return solution;
}

}  // namespace autoshard::solver
