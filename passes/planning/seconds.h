/// What the search minimises: seconds on a cluster, and memory at a price.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "planning/assignment.h"
#include "planning/classes.h"
#include "planning/costs.h"
#include "planning/gather_points.h"
#include "planning/steps.h"

namespace autoshard::planning {

/// Prices of memory: seconds that a byte costs that is live at a program point.
using Prices = std::vector<std::pair<std::int32_t, double>>;

/// The terms of a level network in seconds:
///
///   op             compute seconds, plus (1 - overlap) * halos and partial sums of rank 0
///   reshard (1 - overlap) * seconds of its steps, less the latency that they share with
///                  others; of a slice part of a launch, and where a loop begins with it
///                  what it takes to write it
///   held           bytes on a device * prices of the points at which its members live,
///                  plus 1e-18 s a byte, so that of equal plans the one that splits more wins
///   transient      prices of the points at which the ops of a class run; of operands also
///                  from where they are gathered, and to where others compute the op again
///   made           prices of the points at which a result would live that lives in fusions
///                  else: collectives store it
///   copy           prices of the points at which a copy lives that is more than a slice of
///   its
///                  source, or a loop to which it is passed on
///   sum of a loop  its parts are reduced in each trip, or once behind the loop at the width
///   of
///                  the sum; then with what it takes to add to parts that are larger than what
///                  is held of the sum, and their price
///
/// What is priced is part of what `peak` counts: with every price p_t and the memory limit L
/// the objective less sum_t p_t * L is a lower bound for plans that fit.
class SecondsCosts : public Costs {
 public:
  explicit SecondsCosts(const ProgramOnMesh& on);

  double reshard(const TensorType& type, const Sharding& from, const Sharding& to,
                 AxisMask partial) const override;
  double shared(const TensorType& type, const Sharding& from, const Sharding& to,
                AxisMask partial, std::int32_t together) const override;
  double op(const OpSignature& signature, const FactorAxes& base,
            const FactorAxes& axes) const override;
  double scattering(const OpSignature& signature, const FactorAxes& axes, const Sharding& made,
                    const Sharding& held) const override;
  double held(std::int32_t sharding_class, const Sharding& sharding) const override;
  double transient(const Use& use) const override {
    return use.is_result ? result_price_[use.op][use.position] : operand_price_[use.op];
  }
  double made(const Use& use) const override { return made_price_[use.op][use.position]; }
  double least_reduced(const OpSignature& signature, const FactorAxes& axes) const override;
  bool is_once(std::int32_t sum, double reduced, double bytes,
               double held_bytes) const override;
  double parts(std::int32_t sum, double more_bytes) const override;
  double copy(std::size_t flow) const override { return flow_price_[flow]; }
  double stored_slice() const override { return stored_slice_seconds(on_.cluster); }
  std::uint64_t prices_id() const override { return prices_id_; }

  /// Prices that are charged, and those by which it is decided which sums of loops are reduced
  /// once: the same, or those that led to a plan.
  void set_prices(const Prices& prices, const Prices& deciding);
  void set_prices(const Prices& prices) { set_prices(prices, prices); }
  /// What parts of sums that are reduced once take of a device, over what is held of them.
  std::vector<Transient> parts_of_sums(const Assignment& assignment) const;
  /// The most that a plan is charged besides its time: for ties, and for memory if it keeps
  /// within `memory_limit` bytes.
  double most_untimed_cost(double memory_limit) const;

 private:
  void set_prices_of_ops(const Prices& prices);
  std::vector<double> prices_of_sums(const Prices& prices) const;
  double adding_seconds(const ClassSum& sum, double more_bytes) const;

  const ProgramOnMesh on_;
  const GatherPoints gathers_;
  /// Seconds a byte, of all members of a sharding class together.
  std::vector<double> price_;
  /// By flow: seconds a byte of what it makes besides, all members together: copies, and what
  /// loops pass on.
  std::vector<double> flow_price_;
  /// By `ProgramMemory::passed_on`: its flow; -1: none.
  std::vector<std::int32_t> flow_of_passed_on_;
  /// By op class: seconds a byte that is gathered for its ops, all of them together.
  std::vector<double> operand_price_;
  /// By op class and result: seconds a byte of what its ops write otherwise than it is held,
  /// and of what collectives make of it besides buffers.
  std::vector<std::vector<double>> result_price_, made_price_;
  std::uint64_t prices_id_ = 0;
  /// By sum: what each byte more of the parts of a result costs, of all members together, as
  /// charged and as decided by.
  std::vector<double> sum_price_, deciding_price_;
  /// Sum of all prices.
  double whole_price_ = 0;
};

}  // namespace autoshard::planning
