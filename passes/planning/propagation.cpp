#include "planning/propagation.h"

#include <algorithm>

#include "cost/compute.h"
#include "cost/reshard.h"
#include "planning/classes.h"
#include "planning/level.h"
#include "planning/steps.h"

namespace autoshard::planning {
namespace {

/// Bytes held for a byte sent: too few to change a decision, enough to make one among equals.
constexpr double sent_per_held = 1.0 / (1 << 20);

/// What is sent, in bytes; see `propagate`.
class BytesCosts : public Costs {
 public:
  BytesCosts(const Program& program, const Classes& classes)
      : program_(program), classes_(classes) {}

  double reshard(const TensorType& type, const Sharding& from, const Sharding& to,
                 AxisMask partial) const override {
    return cost(autoshard::reshard(type, from, to, partial, program_.mesh));
  }

  double op(const OpSignature& signature, const FactorAxes&,
            const FactorAxes& axes) const override {
    const Rule& rule = program_.rules[signature.rule];
    double local = 0, total = 0;
    for (const Halo& halo : halos_of(rule, program_.types, axes, program_.mesh)) {
      total += halo.bytes + bytes_per_collective;
    }
    const auto add = [&](const RuleTensor& tensor) {
      if (tensor.type == no_type) return;
      local += program_.types[tensor.type].bytes() /
               static_cast<double>(num_shards(project(tensor, axes), program_.mesh));
    };
    for (const RuleTensor& tensor : rule.operands) add(tensor);
    const AxisMask partial = partial_axes(rule, axes);
    for (const RuleTensor& tensor : rule.results) {
      add(tensor);
      if (tensor.type == no_type && partial != 0) {
        total += cost(autoshard::reshard(scalar_type, {}, {}, partial, program_.mesh));
      }
    }
    return total + sent_per_held * local;
  }

  double held(std::int32_t sharding_class, const Sharding& sharding) const override {
    const ShardingClass& of = classes_.values[sharding_class];
    if (of.source >= 0) return 0;
    return sent_per_held * of.count * program_.types[of.type].bytes() /
           static_cast<double>(num_shards(sharding, program_.mesh));
  }

 private:
  const Program& program_;
  const Classes& classes_;
};

struct Search {
  Search(const Program& program, const PropagationOptions& options)
      : options(options),
        orders(program.mesh, program.pins),
        classes(classes_of(program, nullptr, {})),
        costs(program, classes),
        levels(program, program.mesh, classes, costs, orders),
        all(all_axes(program.mesh)),
        rank(program.mesh.rank()),
        together(levels.most_options(all) <= static_cast<double>(options.max_options)) {}

  /// One network an axis, outermost first, then again with the others as they are until
  /// nothing improves.
  LevelResult axis_by_axis(InternedAssignment& assignment) {
    assignment = levels.unsplit();
    LevelResult result;
    AxisMask decided = 0;
    for (int axis = 0; axis < rank; ++axis) {
      result =
          levels.solve(assignment, decided, 1u << axis, first_rounds, options.seed, false);
      decided |= 1u << axis;
    }
    for (int sweep = 0; sweep < options.sweeps && rank > 1; ++sweep) {
      const double before = result.objective;
      for (int axis = 0; axis < rank; ++axis) {
        result = levels.solve(assignment, decided & ~(1u << axis), 1u << axis, sweep_rounds,
                              options.seed, true);
      }
      if (result.objective >= before) break;
    }
    return result;
  }

  PropagationOptions options;
  AxisOrders orders;
  Classes classes;
  BytesCosts costs;
  LevelSolver levels;
  AxisMask all;
  int rank;
  bool together;
};

}  // namespace

solver::Problem first_network(const Program& program, const PropagationOptions& options) {
  check(program);
  Search search(program, options);
  return search.levels.network(search.levels.unsplit(), 0,
                               search.together ? search.all : AxisMask{1});
}

Plan propagate(const Program& program, const PropagationOptions& options) {
  check(program);
  Search search(program, options);
  InternedAssignment assignment = search.levels.unsplit();
  LevelResult result;
  bool is_plan = false;
  if (search.rank > 1 || !search.together) {
    try {
      result = search.axis_by_axis(assignment);
      is_plan = true;
    } catch (const Contradiction&) {
      // What one axis decided may leave no room for the next; all together have the last word.
      if (!search.together) throw;
      assignment = search.levels.unsplit();
    }
  }
  if (search.together) {
    result = search.levels.solve(assignment, 0, search.all,
                                 is_plan ? joint_rounds : first_rounds, options.seed, is_plan);
  }
  Plan plan =
      plan_of(program, program.mesh, search.classes, search.levels.resolved(assignment));
  plan.levels = search.together ? 1 : search.rank;
  plan.objective = result.objective;
  plan.lower_bound = result.lower_bound;
  plan.reshards = reshards_of(program, plan);
  for (const PlannedReshard& r : plan.reshards) {
    plan.resharded_bytes += r.volume.bytes * r.trips;
  }
  verify(program, program.mesh, plan);
  return plan;
}

}  // namespace autoshard::planning
