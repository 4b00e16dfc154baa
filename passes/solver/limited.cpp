#include "solver/limited.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

#include "solver/dual.h"
#include "solver/memory.h"
#include "solver/network.h"
#include "solver/reduction.h"
#include "solver/search.h"

namespace autoshard::solver {
namespace {

/// Steps of work in an epoch: some twenty milliseconds on a server core of 2023.
constexpr std::int64_t kWorkOfEpoch = 8'000'000;

/// Granted beyond the time limit or an interrupt if nothing feasible is known yet.
constexpr double kSecondsForFirstChoice = 1.0;

/// A walk that returns to its best place when an excursion does not pay.
class Walker {
 public:
  Walker(const Network& network, const MemoryModel& memory, std::uint64_t seed, int patience)
      : search_(network, memory, seed),
        patience_(patience),
        parts_(std::clamp(2000 / std::max(network.nodes(), 1), 1, 20)) {}

  BlockSearch& search() { return search_; }

  void epoch(const std::atomic<bool>& stop) {
    for (int part = 0; part < parts_; ++part) excursion(stop);
    ++age_;
  }

  /// One part of an epoch.
  void excursion(const std::atomic<bool>& stop) {
    search_.run(kWorkOfEpoch / parts_, 0.0, stop);
    if (search_.feasible() && search_.cost() < home_cost_ - 1e-8 * std::abs(home_cost_)) {
      home_ = search_.choice();
      home_cost_ = search_.cost();
      idle_ = 0;
      return;
    }
    if (++idle_ < patience_ || home_.empty()) return;
    idle_ = 0;
    search_.restart(home_);
    search_.kick();
  }

  /// Leaves everything behind and starts from a decoded choice.
  void start(const std::vector<int>& choice) {
    home_.clear();
    home_cost_ = kNotAllowed;
    idle_ = 0;
    age_ = 0;
    search_.restart(choice);
  }
  /// Epochs since the last start.
  int age() const { return age_; }

  void offer(const std::vector<int>& choice, double cost) {
    if (!(cost < home_cost_)) return;
    home_ = choice;
    home_cost_ = cost;
    search_.restart(choice);
    idle_ = 0;
  }

 private:
  BlockSearch search_;
  int patience_;
  int parts_;  ///< the smaller the network, the more excursions fit into an epoch
  int idle_ = 0;
  int age_ = 0;
  std::vector<int> home_;
  double home_cost_ = kNotAllowed;
};

/// What survives from one round of presolve to the next.
class LimitedSolver {
 public:
  LimitedSolver(const Problem& problem, const Options& options, Run& run)
      : problem_(problem),
        options_(options),
        run_(run),
        integral_(cost_scale(problem).is_integral),
        reduction_(problem) {}

  Solution solve() {
    if (options_.start) take_start();
    bool more = true;
    while (more) {
      if (!reduction_.presolve()) {
        finish_exhausted();
        break;
      }
      more = stage();
    }
    if (solution_.choice.empty() && solution_.diagnosis.empty()) {
      solution_.diagnosis =
          "no choice within the memory limit was found; the fullest moment is " +
          std::to_string(fullest_moment_);
    }
    solution_.trace = run_.take_trace();
    solution_.seconds = run_.seconds();
    solution_.iterations = epoch_;
    return std::move(solution_);
  }

 private:
  void take_start() {
    const double cost = cost_of(problem_, *options_.start);
    const Peak peak = peak_of(problem_, *options_.start);
    if (cost < kNotAllowed && peak.bytes <= *problem_.memory_limit)
      accept(*options_.start, cost);
  }

  void accept(std::vector<std::int32_t> choice, double cost) {
    if (!(cost < solution_.cost)) return;
    solution_.cost = cost;
    solution_.peak_memory = peak_of(problem_, choice).bytes;
    solution_.choice = std::move(choice);
    fresh_ = true;
  }

  /// Nothing better than the best exists among what presolve and the bound left.
  void finish_exhausted() {
    if (solution_.choice.empty()) {
      solution_.stop_reason = StopReason::kInfeasible;
      solution_.lower_bound = kNotAllowed;
      solution_.diagnosis = reduction_.diagnosis();
    } else {
      solution_.stop_reason = StopReason::kOptimal;
      solution_.lower_bound = solution_.cost;
    }
    run_.trace(solution_.cost, solution_.lower_bound);
  }

  /// A bound on what is left bounds everything, up to the best cost: what was removed is no
  /// better.
  void raise_bound(double bound) {
    if (integral_) bound = std::ceil(bound);
    solution_.lower_bound = std::max(solution_.lower_bound, std::min(bound, solution_.cost));
  }

  bool proven() const {
    return !solution_.choice.empty() &&
           solution_.cost - solution_.lower_bound <= options_.gap * std::abs(solution_.cost);
  }

  void accept_reduced(const Network& network, const std::vector<int>& choice) {
    std::vector<int> of_reduction(reduction_.nodes(), 0);
    for (int i = 0; i < network.nodes(); ++i) of_reduction[network.source[i]] = choice[i];
    std::vector<std::int32_t> full = reduction_.complete(of_reduction);
    const double cost = cost_of(problem_, full);
    if (peak_of(problem_, full).bytes > *problem_.memory_limit) {
      throw std::logic_error("solver: a choice that fits the reduced problem does not fit");
    }
    accept(std::move(full), cost);
  }

  /// The best known choice in terms of the network, as far as its options are left.
  std::vector<int> reduced_best(const Network& network,
                                const std::vector<std::int32_t>& choice,
                                bool& complete) const {
    std::vector<int> result(network.nodes(), 0);
    complete = true;
    for (int i = 0; i < network.nodes(); ++i) {
      const int left = reduction_.option_left(network.source[i], choice[network.source[i]]);
      complete &= left >= 0;
      result[i] = std::max(left, 0);
    }
    return result;
  }

  /// Removes options that can only be part of choices as dear as the best. Returns how many.
  std::size_t remove_hopeless(const Network& network, double bound,
                              const std::vector<double>& surplus) {
    // Better means at least 1 less where all costs are integers. The margin covers rounding.
    const double better = solution_.cost - (integral_ ? 1.0 : 0.0);
    const double enough = better - bound + 1e-9 * std::abs(solution_.cost);
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
        exhausted_ = true;
        return count;
      }
      hopeless_.emplace_back(network.source[i], removed);
    }
    return count;
  }

  std::int64_t tightest_moment() const {
    const std::vector<std::int64_t>& room = reduction_.room();
    if (room.empty()) return 0;
    return reduction_.moments()[std::min_element(room.begin(), room.end()) - room.begin()];
  }

  /// Tries every choice of a network with few of them.
  void enumerate(const Network& network, const MemoryModel& memory) {
    std::vector<int> choice(network.nodes(), 0);
    std::vector<int> best;
    double best_cost = kNotAllowed;
    for (int node = 0; node < network.nodes();) {
      const double cost = network.cost(choice, network.unary);
      if (cost < best_cost) {
        const std::vector<double> used = memory.profile(choice);
        bool fits = true;
        for (int t = 0; t < memory.moments() && fits; ++t) fits = used[t] <= memory.room[t];
        if (fits) {
          best = choice;
          best_cost = cost;
        }
      }
      for (node = 0; node < network.nodes() && ++choice[node] == network.options(node);
           ++node) {
        choice[node] = 0;
      }
    }
    if (!best.empty()) accept_reduced(network, best);
  }

  /// True: options were removed and another stage follows.
  bool stage();

  const Problem& problem_;
  const Options& options_;
  Run& run_;
  const bool integral_;
  Reduction reduction_;
  Solution solution_;
  std::vector<std::pair<std::int64_t, double>> prices_;  ///< by time, from the stage before
  std::vector<std::pair<int, std::vector<char>>> hopeless_;
  std::int64_t epoch_ = 0;
  int stages_ = 0;
  std::int64_t fullest_moment_ = 0;
  bool exhausted_ = false;
  bool fresh_ = false;
};

bool LimitedSolver::stage() {
  const Network network = freeze(reduction_);
  const MemoryModel memory = memory_of(network, reduction_);
  const std::vector<std::int64_t> moments = reduction_.moments();
  if (network.nodes() == 0) {
    accept_reduced(network, {});
    finish_exhausted();
    return false;
  }
  double choices = 1;
  for (int i = 0; i < network.nodes(); ++i) choices *= network.options(i);
  if (choices <= options_.enumerate_below) {
    enumerate(network, memory);
    if (solution_.choice.empty()) {
      reduction_.diagnose("memory: every allowed choice exceeds the limit; tightest moment " +
                          std::to_string(tightest_moment()));
    }
    finish_exhausted();
    return false;
  }
  Dual dual(network, memory);
  Walker walkers[2] = {{network, memory, options_.seed * 2 + 1, 60},
                       {network, memory, options_.seed * 2 + 2, 3}};
  if (!prices_.empty()) {
    std::vector<double> price(memory.moments(), 0.0);
    for (const auto& [time, value] : prices_) {
      if (price.empty()) break;
      const auto found = std::lower_bound(moments.begin(), moments.end(), time);
      price[std::min<std::size_t>(found - moments.begin(), price.size() - 1)] += value;
    }
    dual.set_price(price);
  }
  const bool had_prices = stages_++ > 0;
  const auto keep_prices = [&] {
    if (had_prices) return;  // later stages speak of what is left only
    solution_.priced_moment.clear();
    solution_.price.clear();
    for (int t = 0; t < memory.moments(); ++t) {
      if (dual.best_price()[t] <= 0) continue;
      solution_.priced_moment.push_back(moments[t]);
      solution_.price.push_back(dual.best_price()[t]);
    }
  };
  bool begun = false;
  const auto begin = [&] {
    begun = true;
    std::vector<int> first = dual.decoded();
    bool complete = false;
    if (options_.start || !solution_.choice.empty()) {
      std::vector<int> known = reduced_best(
          network, solution_.choice.empty() ? *options_.start : solution_.choice, complete);
      if (complete || solution_.choice.empty()) first = std::move(known);
    }
    for (Walker& walker : walkers) {
      walker.search().set_prices(dual.best_price());
      walker.search().restart(first);
      if (complete && walker.search().feasible()) {
        walker.offer(first, walker.search().cost());
      }
    }
  };
  const std::int64_t dual_steps =
      std::max<std::int64_t>(1, kWorkOfEpoch / std::max<std::int64_t>(1, dual.work_of_step()));
  std::atomic<bool> stop{false};
  const auto dual_epoch = [&] {
    for (std::int64_t i = 0; i < dual_steps && !dual.settled(); ++i) {
      dual.step(solution_.cost);
    }
  };
  if (had_prices) {
    dual.step(solution_.cost);
    begin();
  }
  std::int64_t last_gain = epoch_, last_check = epoch_ - 20;
  bool dual_settled_before = false;
  double cost_at_check = kNotAllowed;
  const std::int64_t first_epoch = epoch_;
  int turn = 0;
  int lifetime = 1;
  Random random(options_.seed + 77);
  std::vector<int> decoded;
  for (;; ++epoch_) {
    // Several short looks at the bound before the search starts from what it found.
    const bool bounding = !dual.settled();
    if (!begun && (epoch_ - first_epoch >= 8 || !bounding)) begin();
    const int here = turn % 2;
    const auto search_epoch = [&] {
      // While prices move, every other walk polishes what was decoded last.
      Walker& walker = walkers[turn % 2];
      if (turn % 2 == 1 && bounding && walker.age() >= 3) walker.start(decoded);
      walker.epoch(stop);
      ++turn;
    };
    if (!bounding && begun && walkers[1].age() >= lifetime) {
      dual.decode_near(random);
      walkers[1].start(dual.decoded());
      lifetime = 1 << random.below(6);
    }
    decoded = dual.decoded();
    if (!begun) {
      dual_epoch();
    } else if (options_.threads > 1) {
      std::thread other(search_epoch);
      if (bounding) {
        dual_epoch();
      } else {
        walkers[1 - here].epoch(stop);
      }
      other.join();
    } else if (bounding && epoch_ % 2 == 0) {
      dual_epoch();
    } else {
      search_epoch();
    }
    const double before = solution_.cost;
    if (begun) {
      for (Walker& walker : walkers) {
        BlockSearch& search = walker.search();
        // Costs of the network and of the problem may differ in the last digits.
        if (search.has_best() &&
            search.best_cost() < solution_.cost - 1e-12 * std::abs(search.best_cost())) {
          accept_reduced(network, search.best());
        }
      }
      // The first walk takes over what is better; the second one keeps its own way.
      BlockSearch& a = walkers[0].search();
      BlockSearch& b = walkers[1].search();
      if (b.has_best() && (!a.has_best() || b.best_cost() < a.best_cost())) {
        walkers[0].offer(b.best(), b.best_cost());
      }
      if (bounding) {
        for (Walker& walker : walkers) walker.search().set_prices(dual.best_price());
      }
    }
    if (solution_.cost < before) last_gain = epoch_;
    const bool now_settled = dual.settled();
    const bool due = run_.due();
    if (due && !now_settled) {
      raise_bound(dual.best_bound() - 1e-9 * std::abs(dual.best_bound()));
    }
    // A bound at rest, or a better cost since the last look: what can be ruled out?
    const bool check = (now_settled && !dual_settled_before) ||
                       (epoch_ - last_check >= 40 && solution_.cost < cost_at_check);
    dual_settled_before = now_settled;
    if (check && !solution_.choice.empty()) {
      last_check = epoch_;
      cost_at_check = solution_.cost;
      std::vector<double> surplus;
      const double bound = dual.settle(10, &surplus);
      raise_bound(bound);
      hopeless_.clear();
      const std::size_t removed = remove_hopeless(network, bound, surplus);
      if (exhausted_) {
        keep_prices();
        finish_exhausted();
        return false;
      }
      if (removed > 0 && (removed * 50 >= network.unary.size() || now_settled)) {
        keep_prices();
        prices_.clear();
        for (int t = 0; t < memory.moments(); ++t) {
          if (dual.best_price()[t] > 0) prices_.emplace_back(moments[t], dual.best_price()[t]);
        }
        for (const auto& [node, marks] : hopeless_) reduction_.remove_options(node, marks);
        run_.trace(solution_.cost, solution_.lower_bound);
        return true;
      }
    }
    if (due || fresh_) {
      fresh_ = false;
      run_.trace(solution_.cost, solution_.lower_bound);
    }
    StopReason reason = StopReason::kConverged;
    bool finished = run_.should_stop(epoch_ + 1, reason);
    if (proven()) {
      finished = true;
      reason = solution_.cost <= solution_.lower_bound ? StopReason::kOptimal
                                                       : StopReason::kConverged;
    } else if (!finished && options_.seconds == kNotAllowed && now_settled &&
               epoch_ - last_gain > 400) {
      finished = true;
    }
    if (!finished) continue;
    ++epoch_;
    solution_.stop_reason = reason;
    if (solution_.choice.empty()) {
      // Stopped before anything fitted: a moment more for a choice that does.
      if (!begun) begin();
      const double until = run_.seconds() + kSecondsForFirstChoice;
      BlockSearch& search = walkers[0].search();
      while (!search.has_best() && run_.seconds() < until) {
        search.run(kWorkOfEpoch / 10, 0.0, stop);
      }
      if (search.has_best()) accept_reduced(network, search.best());
    }
    keep_prices();
    if (!solution_.choice.empty() || reason != StopReason::kInterrupted) {
      raise_bound(dual.settle(3, nullptr));
    }
    if (proven() && solution_.cost <= solution_.lower_bound) {
      solution_.stop_reason = StopReason::kOptimal;
    }
    if (begun && solution_.choice.empty()) {
      const std::vector<double> used = memory.profile(walkers[0].search().choice());
      double worst = -kNotAllowed;
      for (int t = 0; t < memory.moments(); ++t) {
        if (used[t] - memory.room[t] > worst) {
          worst = used[t] - memory.room[t];
          fullest_moment_ = moments[t];
        }
      }
    }
    run_.trace(solution_.cost, solution_.lower_bound);
    return false;
  }
}

}  // namespace

Solution solve_limited(const Problem& problem, const Options& options, Run& run) {
  return LimitedSolver(problem, options, run).solve();
}

}  // namespace autoshard::solver
