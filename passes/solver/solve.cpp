#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "solver/elimination.h"
#include "solver/forest.h"
#include "solver/limited.h"
#include "solver/messages.h"
#include "solver/network.h"
#include "solver/problem.h"
#include "solver/reduction.h"
#include "solver/run.h"

namespace autoshard::solver {
namespace {

/// Where message passing has not closed the gap after so many rounds, networks that take so
/// many times `Options::exact_operations` are solved exactly.
constexpr std::int64_t rounds_before_elimination = 30;
constexpr double more_operations = 5;

void check_start(const Problem& problem, const Options& options) {
  if (!options.start) return;
  if (static_cast<int>(options.start->size()) != problem.nodes()) {
    throw std::invalid_argument("start: has " + std::to_string(options.start->size()) +
                                " entries, needs one for each of " +
                                std::to_string(problem.nodes()) + " nodes");
  }
  for (int i = 0; i < problem.nodes(); ++i) {
    if ((*options.start)[i] < 0 || (*options.start)[i] >= problem.option_count(i)) {
      throw std::invalid_argument(
          "start[" + std::to_string(i) + "]: is " + std::to_string((*options.start)[i]) +
          ", node has options 0.." + std::to_string(problem.option_count(i) - 1));
    }
  }
}

/// Cost is all that matters: eliminate, pass messages, search forests.
Solution solve_unlimited(const Problem& problem, const Options& options, Run& run) {
  Solution solution;
  const CostScale scale = cost_scale(problem);
  const double magnitude = scale.magnitude;
  const bool integral = scale.is_integral;
  // Each cost that elimination forms is a sum of at most this many terms.
  const double margin = integral ? 0
                                 : 3.0 * (problem.nodes() + problem.edges()) *
                                       std::numeric_limits<double>::epsilon() * magnitude;

  Reduction reduction(problem);
  const auto infeasible = [&] {
    solution.stop_reason = StopReason::kInfeasible;
    solution.lower_bound = kNotAllowed;
    solution.diagnosis = reduction.diagnosis();
    solution.seconds = run.seconds();
    return solution;
  };
  do {
    if (!reduction.restrict_options()) return infeasible();
    reduction.fold_single_options();
    reduction.merge_tied();
    reduction.remove_dominated();
    reduction.fold_single_options();
    reduction.eliminate();
    if (!reduction.restrict_options()) return infeasible();
    reduction.fold_single_options();
  } while (reduction.remove_dominated());

  const Network network = freeze(reduction);
  const std::vector<double>& unary = network.unary;
  std::vector<int> best(network.nodes(), 0), current(network.nodes(), 0);
  double best_cost = kNotAllowed;
  double bound = network.nodes() == 0 ? network.constant : -kNotAllowed;
  const auto full_choice = [&] {
    std::vector<int> choice(reduction.nodes(), 0);
    for (int i = 0; i < network.nodes(); ++i) choice[network.source[i]] = best[i];
    return reduction.complete(choice);
  };
  const auto bound_below = [&](double cost) {
    const double lower = std::min(bound - margin, cost);
    return integral ? std::ceil(lower - 1e-9) : lower;
  };
  const auto publish = [&] {
    std::vector<std::int32_t> full = full_choice();
    const double cost = cost_of(problem, full);
    if (cost < solution.cost) {
      solution.cost = cost;
      solution.choice = std::move(full);
    }
    solution.lower_bound = bound_below(solution.cost);
    run.trace(solution.cost, solution.lower_bound);
  };
  // When it is called depends on the machine: the solution must not depend on it.
  const auto report = [&] {
    const double cost = std::min(solution.cost, cost_of(problem, full_choice()));
    run.trace(cost, bound_below(cost));
  };
  if (options.start) {
    solution.cost = cost_of(problem, *options.start);
    if (solution.cost < kNotAllowed) solution.choice = *options.start;
  }
  const auto consider = [&](const std::vector<int>& choice) {
    const double cost = network.cost(choice, unary);
    if (!(cost < best_cost)) return false;
    best = choice;
    best_cost = cost;
    return true;
  };

  if (network.nodes() == 0) {
    publish();
    solution.stop_reason = StopReason::kOptimal;
  } else if (const auto exact = eliminate_all(network, unary, options.exact_operations)) {
    consider(*exact);
    bound = best_cost;
    publish();
    solution.stop_reason =
        best_cost < kNotAllowed ? StopReason::kOptimal : StopReason::kInfeasible;
  } else {
    KnownMessages* known = options.known_messages;
    Messages messages = known ? Messages(network, *known) : Messages(network);
    ForestSearch forest(network);
    Random random(options.seed);
    if (options.start) {
      // Where the start still exists in the reduced network, search begins there as well.
      for (int i = 0; i < network.nodes(); ++i) {
        const std::span<const int> left = reduction.node(network.source[i]).original;
        const auto found =
            std::lower_bound(left.begin(), left.end(), (*options.start)[network.source[i]]);
        current[i] = found == left.end() ? 0 : static_cast<int>(found - left.begin());
      }
      if (forest.improve(unary, random, current), consider(current)) publish();
    }
    double settled = -kNotAllowed;  // the bound some passes ago
    int idle = 0;
    const int patience = 12;
    for (std::int64_t iteration = 0;; ++iteration) {
      solution.iterations = iteration;
      if (best_cost < kNotAllowed && iteration > 0) {
        const double cost = std::min(best_cost, solution.cost);
        const double lower =
            integral ? std::ceil(bound - 1e-9 * std::abs(bound) - 1e-9) : bound;
        if (cost - lower <= std::max(options.gap * std::abs(cost), margin)) {
          solution.stop_reason =
              cost - lower <= margin ? StopReason::kOptimal : StopReason::kConverged;
          break;
        }
      }
      if (run.should_stop(iteration, solution.stop_reason)) break;
      if (iteration == rounds_before_elimination) {
        if (const auto exact =
                eliminate_all(network, unary, more_operations * options.exact_operations)) {
          consider(*exact);
          bound = best_cost;
          continue;
        }
      }
      if (idle >= patience && options.seconds == kNotAllowed) {
        solution.stop_reason = StopReason::kConverged;
        break;
      }
      bool improved = false;
      const bool decode = iteration % 2 == 0 || iteration > 6;
      for (const bool forward : {true, false}) {
        const double reached = messages.pass(unary, forward, decode ? &current : nullptr);
        bound = std::max(bound, reached);
        if (!decode) continue;
        forest.improve(unary, random, current);
        improved |= consider(current);
      }
      if (best_cost < kNotAllowed) {
        current = best;
        forest.improve(unary, random, current);
        improved |= consider(current);
      }
      // A bound that rises counts as progress while it closes a hundredth of the gap.
      if (bound > settled + std::max(0.01 * (best_cost - bound), 1e-9 * std::abs(bound)) ||
          (settled == -kNotAllowed && bound > settled)) {
        settled = bound;
        improved = true;
      }
      idle = improved ? 0 : idle + 1;
      if (run.due()) report();
    }
    // What the passes reported is exact up to rounding; the answer is rounded to the safe
    // side.
    const double reached = messages.pass(unary, true, nullptr);
    bound = std::max(
        bound - 1e-9 * std::abs(bound),
        std::min(reached, messages.safe_bound(unary, messages.reparametrization(unary))));
    publish();
    if (known) *known = messages.known(problem.nodes());
    if (solution.cost == kNotAllowed && solution.stop_reason == StopReason::kConverged) {
      solution.diagnosis = "no allowed choice found; none is proven impossible";
    }
  }
  solution.trace = run.take_trace();
  solution.seconds = run.seconds();
  return solution;
}

}  // namespace

Solution solve(const Problem& problem, const Options& options) {
  check(problem);
  check_start(problem, options);
  Run run(options);
  return problem.memory_limit ? solve_limited(problem, options, run)
                              : solve_unlimited(problem, options, run);
}

}  // namespace autoshard::solver
