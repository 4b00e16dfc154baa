/// What a plan costs in seconds and bytes on a cluster: the terms of the search and of
/// reports.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "cost/collectives.h"
#include "cost/compute.h"
#include "memory/peak.h"
#include "memory/program_memory.h"
#include "model/cluster.h"
#include "planning/classes.h"
#include "planning/level.h"
#include "planning/plan.h"

namespace autoshard::planning {

/// Prices of memory: seconds that a byte costs that is live at a moment.
using Prices = std::vector<std::pair<std::int32_t, double>>;

/// The terms of a level network in seconds:
///
///   op             compute seconds, plus (1 - overlap) * halos and partial sums of rank 0
///   redistribution (1 - overlap) * seconds of its steps; of a slice part of a launch
///   holder         bytes on a device * prices of the moments at which its members live,
///                  plus 1e-18 s a byte, so that of equal plans the one that splits more wins
///   transient      prices of the moments at which the ops of a class run
///   copy           likewise, of a copy that is more than a slice of its source
///
/// What is priced is part of what `peak` counts: with every price p_t and the memory limit L
/// the objective less sum_t p_t * L is a lower bound for plans that fit.
class SecondsCosts : public Costs {
 public:
  SecondsCosts(const Program& program, const Mesh& mesh, const Classes& classes,
               const ProgramMemory& memory, const Cluster& cluster);

  double redistribution(const TensorType& type, const Sharding& from, const Sharding& to,
                        AxisMask partial, bool may_scatter) const override;
  double op(const OpKind& kind, const FactorAxes& base, const FactorAxes& axes) const override;
  double scattering(const OpKind& kind, const FactorAxes& axes, const Sharding& made,
                    const Sharding& held) const override;
  double holder(std::int32_t holder, const Sharding& sharding) const override;
  double transient(std::int32_t op_class) const override { return op_price_[op_class]; }
  double copy(std::int32_t holder) const override {
    return classes_.holders[holder].source < 0 ? 0 : price_[holder];
  }
  std::uint64_t prices_id() const override { return prices_id_; }

  void set_prices(const Prices& prices);
  /// What a plan is charged at most that is no time: for ties, and the prices of memory if it
  /// keeps within `memory_limit` bytes.
  double most_beside_seconds(double memory_limit) const;

 private:
  const Program& program_;
  const Mesh& mesh_;
  const Classes& classes_;
  const ProgramMemory& memory_;
  const Cluster& cluster_;
  /// Seconds a byte, of all members of a holder together.
  std::vector<double> price_;
  /// Seconds a byte that lives only while the ops of a class run.
  std::vector<double> op_price_;
  std::uint64_t prices_id_ = 0;
  /// Sum of all prices.
  double whole_price_ = 0;
};

/// One redistribution of a plan and the collectives it is made of.
struct CostedMove {
  PlannedRedistribution move;
  std::vector<Step> steps;
  /// One a step, once.
  std::vector<double> step_seconds;
};

/// Every term of a plan's cost.
struct PlanCosts {
  /// One an op, once.
  std::vector<Compute> ops;
  /// Redistributions, halos (place `halo`), and shared copies before their readers.
  std::vector<CostedMove> moves;
  double compute_seconds = 0;
  double communication_seconds = 0;
  /// compute + communication - min(overlap * communication, compute)
  double step_seconds = 0;
  /// What each device sends.
  double sent_bytes = 0;
  Peak peak;
};

/// What lives besides the values as they are held: copies that are more than a slice of their
/// source, what ops read or write otherwise, what collectives make for fusions, operands of
/// matmuls in loops, and copies of optimizer states in another order of dims.
std::vector<Transient> transients_of(const Program& program, const Mesh& mesh,
                                     const Classes& classes, const ProgramMemory& memory,
                                     const Cluster& cluster, const LevelSolver& levels,
                                     const Labels& labels);

/// Bytes of a plan at its worst moment, when value v is cut into `num_shards[v]` blocks. Late
/// sums (planning/late_sums.h) count as far as the compiler lets them.
Peak peak_of(const Program& program, const Mesh& mesh, const Classes& classes,
             const ProgramMemory& memory, const Cluster& cluster, const LevelSolver& levels,
             const Labels& labels, const std::vector<double>& num_shards);

/// Adds up what the labels of a search mean; the network charges the same.
PlanCosts costs_of(const Program& program, const Mesh& mesh, const Classes& classes,
                   const ProgramMemory& memory, const Cluster& cluster,
                   const LevelSolver& levels, const Labels& labels, const Plan& plan);

}  // namespace autoshard::planning
