/// Local search under a memory limit: joint moves of forests, steered by prices.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "solver/forest.h"
#include "solver/memory.h"
#include "solver/network.h"
#include "solver/random.h"

namespace autoshard::solver {

/// A walk over choices. Each trial picks some nodes around a crowded point, charges their
/// memory by prices, finds their best joint options under those prices, raises the price of
/// the point that overflows most just enough to make the way back as good, and tries again.
/// What fits and is cheap enough is taken.
class BlockSearch {
 public:
  BlockSearch(const Network& network, const MemoryModel& memory, std::uint64_t seed);

  /// Starts again from `choice`, which may overflow.
  void restart(const std::vector<int>& choice);
  /// Prices per point that steer the picks; not owned, may change between calls.
  void set_prices(const std::vector<double>& price);

  /// Makes trials at `temperature` (cost that a move may lose, on average) until they took
  /// about `work` steps, or `stop` is set.
  void run(std::int64_t work, double temperature, const std::atomic<bool>& stop);

  /// Moves a random part of the network to where random prices would have it, feasible or not.
  void kick();

  bool feasible() const { return overflow_ == 0; }
  double cost() const { return cost_; }
  double overflow() const { return overflow_; }
  const std::vector<int>& choice() const { return choice_; }
  bool has_best() const { return best_cost_ < kNotAllowed; }
  double best_cost() const { return best_cost_; }
  const std::vector<int>& best() const { return best_; }
  /// Takes over a better choice found elsewhere.
  void offer(const std::vector<int>& choice, double cost);

 private:
  struct Outcome {
    double cost = 0;      ///< change of cost
    double overflow = 0;  ///< change of the total overflow
    double priced = 0;    ///< change of the memory's cost at the trial's prices
    int worst = -1;       ///< point that overflows most, -1: none
    double worst_growth = 0;
  };
  void pick();
  /// Prices of this trial over points [first, last).
  double trial_price(int first, int last) const;
  /// Charges the trial's prices to the options of the picked nodes, into `extra_`.
  void price_picked();
  /// After a change of `used_` over these points.
  void update_blocks(int first, int last);
  /// After a change of `penalty_` or of what overflows.
  void price_penalties();
  Outcome outcome(double cost_before, double cost_after);
  void take(const Outcome& result);
  void trial(double temperature);
  void keep_best();

  const Network& network_;
  const MemoryModel& memory_;
  ForestSearch forest_;
  Random random_;
  std::vector<int> choice_, trial_choice_, best_;
  std::vector<double> used_;
  std::vector<double> price_;
  std::vector<double> sums_;          ///< of `price_`
  std::vector<double> penalty_sums_;  ///< of the penalties on overfull points; empty: none
  std::vector<double> extra_;
  double factor_ = 1;  ///< the trial charges price_ * factor_ ...
  struct Surcharge {
    int point;
    double price;
  };
  std::vector<Surcharge> surcharges_;  ///< ... and these
  struct Change {
    int point;
    double bytes;
  };
  std::vector<Change> changes_;      ///< by point; of memory used, if the trial is taken
  std::vector<double> block_slack_;  ///< least room left in blocks of points
  std::vector<int> priced_points_;
  std::vector<int> changed_;
  double cost_ = kNotAllowed, overflow_ = 0, best_cost_ = kNotAllowed;
  double penalty_ = 0;          ///< cost of a byte too much while the choice overflows
  double reference_price_ = 0;  ///< sum of all prices
  double spread_ = 0;           ///< by how much the options of a node differ, on average
  std::int64_t trials_ = 0, work_ = 0;
};

}  // namespace autoshard::solver
