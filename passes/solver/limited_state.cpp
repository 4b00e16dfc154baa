#include "solver/limited_state.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace autoshard::solver {

LimitedState::LimitedState(const Problem& problem, const Options& options, Run& run)
    : problem(problem),
      options(options),
      run(run),
      integral(cost_scale(problem).is_integral),
      reduction(problem) {}

void LimitedState::take_start() {
  const double cost = cost_of(problem, *options.start);
  const Peak peak = peak_of(problem, *options.start);
  if (cost < kNotAllowed && peak.bytes <= *problem.memory_limit) accept(*options.start, cost);
}

void LimitedState::accept(std::vector<std::int32_t> choice, double cost) {
  if (!(cost < solution.cost)) return;
  solution.cost = cost;
  solution.peak_memory = peak_of(problem, choice).bytes;
  solution.choice = std::move(choice);
  fresh = true;
}

void LimitedState::finish_exhausted() {
  if (solution.choice.empty()) {
    solution.stop_reason = StopReason::kInfeasible;
    solution.lower_bound = kNotAllowed;
    solution.diagnosis = reduction.diagnosis;
  } else {
    solution.stop_reason = StopReason::kOptimal;
    solution.lower_bound = solution.cost;
  }
  run.trace(solution.cost, solution.lower_bound);
}

void LimitedState::raise_bound(double bound) {
  if (integral) bound = std::ceil(bound);
  solution.lower_bound = std::max(solution.lower_bound, std::min(bound, solution.cost));
}

bool LimitedState::proven() const {
  return !solution.choice.empty() &&
         solution.cost - solution.lower_bound <= options.gap * std::abs(solution.cost);
}

void LimitedState::accept_reduced(const Network& network, const std::vector<int>& choice) {
  std::vector<int> of_reduction(reduction.count(), 0);
  for (int i = 0; i < network.nodes(); ++i) of_reduction[network.source[i]] = choice[i];
  std::vector<std::int32_t> full = reduction.complete(of_reduction);
  const double cost = cost_of(problem, full);
  if (peak_of(problem, full).bytes > *problem.memory_limit) {
    throw std::logic_error("solver: a choice that fits the reduced problem does not fit");
  }
  accept(std::move(full), cost);
}

std::vector<int> LimitedState::reduced_best(const Network& network,
                                            const std::vector<std::int32_t>& choice,
                                            bool& complete) const {
  std::vector<int> result(network.nodes(), 0);
  complete = true;
  for (int i = 0; i < network.nodes(); ++i) {
    const int left = reduction.option_left(network.source[i], choice[network.source[i]]);
    complete &= left >= 0;
    result[i] = std::max(left, 0);
  }
  return result;
}

std::size_t LimitedState::remove_hopeless(const Network& network, double bound,
                                          const std::vector<double>& surplus) {
  // Better means at least 1 less where all costs are integers. The margin covers rounding.
  const double better = solution.cost - (integral ? 1.0 : 0.0);
  const double enough = better - bound + 1e-9 * std::abs(solution.cost);
  std::size_t count = 0;
  std::vector<char> removed;
  for (int i = 0; i < network.nodes(); ++i) {
    const int k = network.options(i);
    removed.assign(k, 0);
    std::size_t here = 0;
    for (int s = 0; s < k; ++s) {
      removed[s] = surplus[network.offset[i] + s] * (1 - 1e-9) > enough;
      here += removed[s];
    }
    if (here == 0) continue;
    count += here;
    if (here == static_cast<std::size_t>(k)) {
      exhausted = true;
      return count;
    }
    hopeless.emplace_back(network.source[i], removed);
  }
  return count;
}

std::int64_t LimitedState::tightest_point() const {
  const std::vector<std::int64_t>& room = reduction.room;
  if (room.empty()) return 0;
  return reduction.points[std::min_element(room.begin(), room.end()) - room.begin()];
}

void LimitedState::enumerate(const Network& network, const MemoryModel& memory) {
  std::vector<int> choice(network.nodes(), 0);
  std::vector<int> best;
  double best_cost = kNotAllowed;
  for (int node = 0; node < network.nodes();) {
    const double cost = network.cost(choice, network.unary);
    if (cost < best_cost) {
      const std::vector<double> used = memory.profile(choice);
      bool fits = true;
      for (int t = 0; t < memory.points() && fits; ++t) fits = used[t] <= memory.room[t];
      if (fits) {
        best = choice;
        best_cost = cost;
      }
    }
    for (node = 0; node < network.nodes() && ++choice[node] == network.options(node); ++node) {
      choice[node] = 0;
    }
  }
  if (!best.empty()) accept_reduced(network, best);
}

}  // namespace autoshard::solver
