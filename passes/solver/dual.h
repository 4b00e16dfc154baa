/// Lower bounds under a memory limit, and the prices that steer the search.
#pragma once

#include <cstdint>
#include <vector>

#include "solver/memory.h"
#include "solver/messages.h"
#include "solver/network.h"
#include "solver/random.h"

namespace autoshard::solver {

/// For prices p >= 0 on the points, the limit can only make the optimum dearer:
///
///   bound(p) = (lower bound of the network with the memory of every option charged at p)
///              - sum_t p[t] * room[t]
///
/// Each step passes messages once in both directions at the present prices, mixes the overflow
/// of the choice decoded on the way into an average, and tries prices that lie along this
/// average from the best ones. Lengths grow with gains and shrink with failures, in cycles.
///
/// Source: Barahona, Anbil 2000, "The volume algorithm: producing primal solutions with a
/// subgradient method"; the weights of the points are our own.
class Dual {
 public:
  Dual(const Network& network, const MemoryModel& memory);

  /// One step. `limit`: a cost the bound cannot exceed, +inf if none is known.
  void step(double limit);

  double best_bound() const { return best_bound_; }
  const std::vector<double>& best_price() const { return best_price_; }
  /// The choice decoded in the last step.
  const std::vector<int>& decoded() const { return decoded_; }
  /// Steps no longer change the bound.
  bool settled() const { return settled_; }
  /// Begins at `price`.
  void set_price(const std::vector<double>& price);

  /// Decodes a choice at random prices and costs near the best ones, as a place to search
  /// from.
  void decode_near(Random& random);

  /// Goes back to the best prices and passes messages there `passes` times. Returns a bound
  /// rounded to the safe side. `surplus`, if given: by how much it rises if an option is
  /// forced.
  double settle(int passes, std::vector<double>* surplus);
  /// After `settle`: what the bound rests on.
  std::vector<double> reparametrization() const { return messages_.reparametrization(unary_); }

  std::int64_t work_of_step() const { return work_of_step_; }

 private:
  void charge(const std::vector<double>& price);
  double charged_room(const std::vector<double>& price) const;

  const Network& network_;
  const MemoryModel& memory_;
  Messages messages_;
  std::vector<double> unary_, price_, best_price_, direction_, weight_, sums_;
  std::vector<int> decoded_;
  double best_bound_ = -kNotAllowed;
  double cycle_bound_ = -kNotAllowed;  ///< at the beginning of this cycle of step lengths
  double scale_ = 1.0;
  int failures_ = 0;
  double still_bound_ = -kNotAllowed;  ///< while there is nothing to price
  int still_steps_ = 0;
  bool settled_ = false;
  std::int64_t work_of_step_ = 0;
};

}  // namespace autoshard::solver
