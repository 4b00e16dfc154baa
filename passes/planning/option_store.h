/// The shardings and strategies that levels of a program choose from, and what they cost.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/hash_index.h"
#include "model/program.h"
#include "planning/classes.h"
#include "planning/costs.h"
#include "planning/options.h"
#include "solver/problem.h"

namespace autoshard::planning {

/// Keeps from level to level what was made once: shardings by type, strategies by kind of op,
/// each known by its index there, the options of both, and costs.
class OptionStore {
 public:
  /// Options of a sharding class: indices of shardings of a type.
  struct Domain {
    std::int32_t type;
    std::vector<std::int32_t> shardings;
  };
  /// Options of an op.
  struct OpOptions {
    /// Indices into the signature's strategies.
    std::vector<std::int32_t> strategies;
    /// Indices into the type's shardings, one a tensor and option.
    std::vector<std::vector<std::int32_t>> operands, results;
    std::vector<AxisMask> partial;
    /// One run.
    std::vector<double> costs;
  };

  /// All arguments must outlive the store.
  OptionStore(const Program& program, const Mesh& mesh, const Classes& classes,
              const Costs& costs, const AxisOrders& orders);

  std::int32_t intern(std::int32_t type, const Sharding& sharding);
  std::int32_t intern_strategy(std::int32_t signature, const FactorAxes& axes);
  const Sharding& sharding(std::int32_t type, std::int32_t index) const {
    return shardings_[type].list[index];
  }
  const FactorAxes& strategy(std::int32_t signature, std::int32_t index) const {
    return strategies_[signature].list[index];
  }

  /// The options of a tensor that is cut as `sharding` where axes are not free, by the index
  /// of a domain.
  std::int32_t domain(std::int32_t type, std::int32_t sharding, AxisMask free);
  /// A domain with only these shardings; equal ones are shared.
  std::int32_t restricted_domain(std::int32_t type, std::vector<std::int32_t> shardings);
  const Domain& domain_at(std::int32_t index) const { return domains_[index]; }
  /// The options of ops that are cut as `strategy` where axes are not free, by index.
  std::int32_t options_for(std::int32_t signature, std::int32_t strategy, AxisMask free);
  const OpOptions& options_at(std::int32_t index) const { return op_options_[index]; }

  /// Once, what an op class takes more if it has this option and the sharding class this
  /// sharding.
  double use_cost(const Use& use, std::int32_t sharding, const OpOptions& op,
                  std::int32_t option) {
    const auto [type, together] = kind_of(use.sharding_class);
    if (use.is_result) {
      const std::int32_t made = op.results[use.position][option];
      const double moved = cost_between(type, made, sharding, op.partial[option]) -
                           shared_cost(type, made, sharding, op.partial[option], together);
      if (op.partial[option] == 0) return moved;
      const double reduced = moved + scattering(use, op.strategies[option], made, sharding);
      const bool once = use.sum >= 0 && is_once(use.sum, op, option);
      return once ? classes_.sums[use.sum].share() * reduced : reduced;
    }
    const std::int32_t wanted = op.operands[use.position][option];
    if (use.is_kept) return sharding == wanted ? 0.0 : not_allowed;
    return cost_between(type, sharding, wanted) -
           shared_cost(type, sharding, wanted, 0, together);
  }
  /// Once, from a sharding of `type` to one of `other`: both have one shape. `together` such
  /// run as one.
  double flow_cost(std::int32_t type, std::int32_t from, std::int32_t other, std::int32_t to,
                   std::int32_t together);
  /// Bytes on a device of a copy that is no slice of what it is made from; else 0.
  double copied_bytes(std::int32_t type, std::int32_t from, std::int32_t to) const;
  /// The same of what an op class has otherwise than it is held, and of what a collective
  /// makes of its result.
  double transient_bytes(const Use& use, std::int32_t sharding, const OpOptions& op,
                         std::int32_t option) const {
    const auto& used = (use.is_result ? op.results : op.operands)[use.position];
    return copied_bytes(classes_.values[use.sharding_class].type, sharding, used[option]);
  }
  double made_bytes(const Use& use, std::int32_t sharding, const OpOptions& op,
                    std::int32_t option) const {
    const std::int32_t type = classes_.values[use.sharding_class].type;
    return copied_bytes(type, op.results[use.position][option], sharding);
  }
  /// Bytes on a device of a slice of what flows from a sharding of `type` to one of `other`;
  /// 0 of everything else.
  double sliced_bytes(std::int32_t type, std::int32_t from, std::int32_t other,
                      std::int32_t to) const;

  /// What it costs that an op with this option leaves larger parts of `Classes::sums[sum]` on
  /// devices than sums of `type` that are held as `sharding`; 0 if it leaves none.
  double parts_cost(std::int32_t sum, std::int32_t type, std::int32_t sharding,
                    const OpOptions& op, std::int32_t option);

 private:
  static constexpr double not_allowed = solver::kNotAllowed;
  /// Most types and signatures have few shardings and strategies.
  static constexpr std::size_t few = 8;
  /// All shardings of one type seen so far, and what it costs to go between them.
  struct Shardings {
    std::vector<Sharding> list;
    HashIndex index{few};
    /// Without partial sums, `stride` a row; NaN: not known yet.
    std::vector<double> costs;
    std::size_t stride = 0;
    std::unordered_map<std::uint64_t, double> partial_costs;
    /// By how many run as one.
    std::map<std::int32_t, std::unordered_map<std::uint64_t, double>> shared_costs;
  };
  /// All strategies of one kind of op seen so far, and by strategy and sharding of the result
  /// what it takes to scatter that.
  struct Strategies {
    std::vector<FactorAxes> list;
    HashIndex index{few};
    std::unordered_map<std::uint64_t, double> scattering;
    /// By strategy: `Costs::least_reduced`.
    std::unordered_map<std::int32_t, double> reduced;
  };

  double cost_between(std::int32_t type, std::int32_t from, std::int32_t to) {
    if (from == to) return 0;
    const Shardings& known = shardings_[type];
    if (known.list.size() <= known.stride) {
      const double cost = known.costs[static_cast<std::size_t>(from) * known.stride + to];
      if (!std::isnan(cost)) return cost;
    }
    return new_cost_between(type, from, to);
  }
  double cost_between(std::int32_t type, std::int32_t from, std::int32_t to,
                      AxisMask partial) {
    return partial == 0 ? cost_between(type, from, to)
                        : partial_cost_between(type, from, to, partial);
  }
  std::pair<std::int32_t, std::int32_t> kind_of(std::int32_t sharding_class) const {
    const ShardingClass& of = classes_.values[sharding_class];
    return {of.type, of.together};
  }
  /// What of `cost_between` is not taken.
  double shared_cost(std::int32_t type, std::int32_t from, std::int32_t to, AxisMask partial,
                     std::int32_t together) {
    if (together == 1 || (partial == 0 && from == to)) return 0;
    return new_shared_cost(type, from, to, partial, together);
  }
  double new_shared_cost(std::int32_t type, std::int32_t from, std::int32_t to,
                         AxisMask partial, std::int32_t together);
  double new_cost_between(std::int32_t type, std::int32_t from, std::int32_t to);
  double partial_cost_between(std::int32_t type, std::int32_t from, std::int32_t to,
                              AxisMask partial);
  double scattering(const Use& use, std::int32_t strategy, std::int32_t made,
                    std::int32_t held);
  bool is_once(std::int32_t sum, const OpOptions& op, std::int32_t option);
  OpOptions options_from(std::int32_t signature, FactorAxes start, AxisMask free);

  const Program& program_;
  const Mesh& mesh_;
  const Classes& classes_;
  const Costs& costs_;
  const AxisOrders& orders_;
  std::vector<Shardings> shardings_;
  std::vector<Strategies> strategies_;
  std::vector<Domain> domains_;
  std::unordered_map<std::uint64_t, std::int32_t> domain_index_;
  std::unordered_map<std::string, std::int32_t> restricted_index_;
  std::vector<OpOptions> op_options_;
  std::unordered_map<std::uint64_t, std::int32_t> options_index_;
};

}  // namespace autoshard::planning
