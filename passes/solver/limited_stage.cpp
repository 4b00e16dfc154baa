#include "solver/limited_stage.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "solver/dual.h"
#include "solver/random.h"
#include "solver/walker.h"

namespace autoshard::solver {
namespace {

/// Granted beyond the time limit or an interrupt if nothing feasible is known yet.
constexpr double kSecondsForFirstChoice = 1.0;
/// Epochs of looking at the bound before the walks begin.
constexpr int kEpochsBeforeWalks = 8;
/// Epochs without a better choice after which a search without a time limit ends.
constexpr int kIdleEpochs = 400;
/// Epochs between two looks at what can be ruled out.
constexpr int kEpochsBetweenChecks = 40;

/// The dual bound and the walks of one round.
class LimitedStage {
 public:
  LimitedStage(LimitedState& state, const Network& network, const MemoryModel& memory)
      : state_(state),
        network_(network),
        memory_(memory),
        points_(state.reduction.points),
        dual_(network, memory),
        walkers_{{network, memory, state.options.seed * 2 + 1, 60},
                 {network, memory, state.options.seed * 2 + 2, 3}},
        had_prices_(state.stages++ > 0),
        dual_steps_(std::max<std::int64_t>(
            1, kWorkOfEpoch / std::max<std::int64_t>(1, dual_.work_of_step()))),
        first_epoch_(state.epoch),
        last_gain_(state.epoch),
        last_check_(state.epoch - 20),
        random_(state.options.seed + 77) {
    if (!state.prices.empty()) take_prices();
  }

  bool run() {
    if (had_prices_) {
      dual_.step(state_.solution.cost);
      begin_walks();
    }
    for (;; ++state_.epoch) {
      // Several short looks at the bound before the search starts from what it found.
      const bool bounding = !dual_.settled();
      const bool is_time = state_.epoch - first_epoch_ >= kEpochsBeforeWalks || !bounding;
      if (!begun_ && is_time) begin_walks();
      run_epoch(bounding);
      const double before = state_.solution.cost;
      if (begun_) collect(bounding);
      if (state_.solution.cost < before) last_gain_ = state_.epoch;
      const bool now_settled = dual_.settled();
      const bool due = state_.run.due();
      if (due && !now_settled) {
        state_.raise_bound(dual_.best_bound() - 1e-9 * std::abs(dual_.best_bound()));
      }
      if (should_check(now_settled)) {
        const bool has_removed = rule_out(now_settled);
        if (state_.exhausted) return false;
        if (has_removed) return true;
      }
      if (due || state_.fresh) {
        state_.fresh = false;
        trace();
      }
      StopReason reason = StopReason::kConverged;
      if (!is_finished(now_settled, reason)) continue;
      ++state_.epoch;
      finish(reason);
      return false;
    }
  }

 private:
  void take_prices();
  void keep_prices();
  void begin_walks();
  void dual_epoch();
  void walk_epoch(bool bounding);
  void run_epoch(bool bounding);
  void collect(bool bounding);
  bool should_check(bool now_settled);
  bool rule_out(bool now_settled);
  bool is_finished(bool now_settled, StopReason& reason);
  void finish(StopReason reason);
  void find_first_choice();
  void find_fullest_point();
  void trace() { state_.run.trace(state_.solution.cost, state_.solution.lower_bound); }

  LimitedState& state_;
  const Network& network_;
  const MemoryModel& memory_;
  const std::vector<std::int64_t> points_;
  Dual dual_;
  Walker walkers_[2];
  const bool had_prices_;
  const std::int64_t dual_steps_, first_epoch_;
  std::int64_t last_gain_, last_check_;
  Random random_;
  std::atomic<bool> stop_{false};
  /// The walks have begun.
  bool begun_ = false;
  bool was_settled_ = false;
  double cost_at_check_ = kNotAllowed;
  /// Epochs of walks so far: two take turns.
  int turn_ = 0;
  /// Epochs after which the second walk starts anew.
  int lifetime_ = 1;
  std::vector<int> decoded_;
};

/// Begins with the prices of the round before, each at the point that stands for its time
/// now.
void LimitedStage::take_prices() {
  std::vector<double> price(memory_.points(), 0.0);
  for (const auto& [time, value] : state_.prices) {
    if (price.empty()) break;
    const auto found = std::lower_bound(points_.begin(), points_.end(), time);
    price[std::min<std::size_t>(found - points_.begin(), price.size() - 1)] += value;
  }
  dual_.set_price(price);
}

/// Puts the prices into the solution. Later rounds speak of what is left only.
void LimitedStage::keep_prices() {
  if (had_prices_) return;
  Solution& solution = state_.solution;
  solution.priced_point.clear();
  solution.price.clear();
  for (int t = 0; t < memory_.points(); ++t) {
    if (dual_.best_price()[t] <= 0) continue;
    solution.priced_point.push_back(points_[t]);
    solution.price.push_back(dual_.best_price()[t]);
  }
}

void LimitedStage::begin_walks() {
  begun_ = true;
  const Solution& solution = state_.solution;
  std::vector<int> first = dual_.decoded();
  bool complete = false;
  if (state_.options.start || !solution.choice.empty()) {
    std::vector<int> known = state_.reduced_best(
        network_, solution.choice.empty() ? *state_.options.start : solution.choice, complete);
    if (complete || solution.choice.empty()) first = std::move(known);
  }
  for (Walker& walker : walkers_) {
    walker.search().set_prices(dual_.best_price());
    walker.search().restart(first);
    if (complete && walker.search().feasible()) {
      walker.offer(first, walker.search().cost());
    }
  }
}

void LimitedStage::dual_epoch() {
  for (std::int64_t i = 0; i < dual_steps_ && !dual_.settled(); ++i) {
    dual_.step(state_.solution.cost);
  }
}

/// While prices move, every other walk polishes what was decoded last.
void LimitedStage::walk_epoch(bool bounding) {
  Walker& walker = walkers_[turn_ % 2];
  if (turn_ % 2 == 1 && bounding && walker.age() >= 3) walker.start(decoded_);
  walker.epoch(stop_);
  ++turn_;
}

void LimitedStage::run_epoch(bool bounding) {
  const int here = turn_ % 2;
  if (!bounding && begun_ && walkers_[1].age() >= lifetime_) {
    dual_.decode_near(random_);
    walkers_[1].start(dual_.decoded());
    lifetime_ = 1 << random_.below(6);
  }
  decoded_ = dual_.decoded();
  if (!begun_) {
    dual_epoch();
  } else if (state_.options.threads > 1) {
    std::thread other([&] { walk_epoch(bounding); });
    if (bounding) {
      dual_epoch();
    } else {
      walkers_[1 - here].epoch(stop_);
    }
    other.join();
  } else if (bounding && state_.epoch % 2 == 0) {
    dual_epoch();
  } else {
    walk_epoch(bounding);
  }
}

/// Takes what the walks have found.
void LimitedStage::collect(bool bounding) {
  for (Walker& walker : walkers_) {
    BlockSearch& search = walker.search();
    // Costs of the network and of the problem may differ in the last digits.
    if (search.has_best() &&
        search.best_cost() < state_.solution.cost - 1e-12 * std::abs(search.best_cost())) {
      state_.accept_reduced(network_, search.best());
    }
  }
  // The first walk takes over what is better; the second one keeps its own way.
  BlockSearch& a = walkers_[0].search();
  BlockSearch& b = walkers_[1].search();
  if (b.has_best() && (!a.has_best() || b.best_cost() < a.best_cost())) {
    walkers_[0].offer(b.best(), b.best_cost());
  }
  if (!bounding) return;
  for (Walker& walker : walkers_) walker.search().set_prices(dual_.best_price());
}

/// A bound at rest, or a better cost since the last look: what can be ruled out?
bool LimitedStage::should_check(bool now_settled) {
  const bool is_due =
      (now_settled && !was_settled_) || (state_.epoch - last_check_ >= kEpochsBetweenChecks &&
                                         state_.solution.cost < cost_at_check_);
  was_settled_ = now_settled;
  return is_due && !state_.solution.choice.empty();
}

/// Removes options that no better choice has, if they are many; true if it did. Ends the
/// search if nothing is left.
bool LimitedStage::rule_out(bool now_settled) {
  last_check_ = state_.epoch;
  cost_at_check_ = state_.solution.cost;
  std::vector<double> surplus;
  const double bound = dual_.settle(10, &surplus);
  state_.raise_bound(bound);
  state_.hopeless.clear();
  const std::size_t removed = state_.remove_hopeless(network_, bound, surplus);
  if (state_.exhausted) {
    keep_prices();
    state_.finish_exhausted();
    return false;
  }
  if (removed == 0 || (removed * 50 < network_.unary.size() && !now_settled)) return false;
  keep_prices();
  state_.prices.clear();
  for (int t = 0; t < memory_.points(); ++t) {
    const double price = dual_.best_price()[t];
    if (price > 0) state_.prices.emplace_back(points_[t], price);
  }
  for (const auto& [node, marks] : state_.hopeless) {
    state_.reduction.remove_options(node, marks);
  }
  trace();
  return true;
}

bool LimitedStage::is_finished(bool now_settled, StopReason& reason) {
  const bool should_stop = state_.run.should_stop(state_.epoch + 1, reason);
  if (state_.proven()) {
    reason = state_.solution.cost <= state_.solution.lower_bound ? StopReason::kOptimal
                                                                 : StopReason::kConverged;
    return true;
  }
  return should_stop || (state_.options.seconds == kNotAllowed && now_settled &&
                         state_.epoch - last_gain_ > kIdleEpochs);
}

void LimitedStage::finish(StopReason reason) {
  Solution& solution = state_.solution;
  solution.stop_reason = reason;
  if (solution.choice.empty()) find_first_choice();
  keep_prices();
  if (!solution.choice.empty() || reason != StopReason::kInterrupted) {
    state_.raise_bound(dual_.settle(3, nullptr));
  }
  if (state_.proven() && solution.cost <= solution.lower_bound) {
    solution.stop_reason = StopReason::kOptimal;
  }
  if (begun_ && solution.choice.empty()) find_fullest_point();
  trace();
}

/// Stopped before anything fitted: a little longer for a choice that does.
void LimitedStage::find_first_choice() {
  if (!begun_) begin_walks();
  const double until = state_.run.seconds() + kSecondsForFirstChoice;
  BlockSearch& search = walkers_[0].search();
  while (!search.has_best() && state_.run.seconds() < until) {
    search.run(kWorkOfEpoch / 10, 0.0, stop_);
  }
  if (search.has_best()) state_.accept_reduced(network_, search.best());
}

void LimitedStage::find_fullest_point() {
  const std::vector<double> used = memory_.profile(walkers_[0].search().choice());
  double worst = -kNotAllowed;
  for (int t = 0; t < memory_.points(); ++t) {
    if (used[t] - memory_.room[t] > worst) {
      worst = used[t] - memory_.room[t];
      state_.fullest_point = points_[t];
    }
  }
}

/// Whether a network has so few choices that all can be tried.
bool is_small(const Network& network, const Options& options) {
  double choices = 1;
  for (int i = 0; i < network.nodes(); ++i) choices *= network.options(i);
  return choices <= options.enumerate_below;
}

}  // namespace

bool search_stage(LimitedState& state) {
  const Network network = freeze(state.reduction);
  const MemoryModel memory = memory_of(network, state.reduction);
  if (network.nodes() == 0) {
    state.accept_reduced(network, {});
    state.finish_exhausted();
    return false;
  }
  if (is_small(network, state.options)) {
    state.enumerate(network, memory);
    if (state.solution.choice.empty()) {
      state.reduction.diagnosis =
          "memory: every allowed choice exceeds the limit; tightest point " +
          std::to_string(state.tightest_point());
    }
    state.finish_exhausted();
    return false;
  }
  return LimitedStage(state, network, memory).run();
}

}  // namespace autoshard::solver
