#include "planning/plan.h"

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_set>

#include "cost/compute.h"
#include "planning/steps.h"

namespace autoshard::planning {
namespace {

/// The axes on the factors of `tensor` that make it `sharding`, or nothing if no cut does.
std::optional<FactorAxes> lift(const Rule& rule, const RuleTensor& tensor,
                               const Sharding& sharding, const Mesh& mesh) {
  FactorAxes axes(rule.factors.size());
  for (std::size_t d = 0; d < tensor.dims.size(); ++d) {
    std::size_t at = 0;
    for (AxisIndex axis : sharding.dims[d]) {
      const auto fits = [&](std::int32_t f) {
        return rule.factors[f].kind != FactorKind::need_replication &&
               rule.factors[f].size % (num_shards(axes[f], mesh) * mesh.axis_sizes[axis]) == 0;
      };
      while (at < tensor.dims[d].size() && num_shards(axes[tensor.dims[d][at]], mesh) ==
                                               rule.factors[tensor.dims[d][at]].size) {
        ++at;
      }
      if (at == tensor.dims[d].size() || !fits(tensor.dims[d][at])) return std::nullopt;
      axes[tensor.dims[d][at]].push_back(axis);
    }
  }
  return axes;
}

/// Each free value is cut as the reader that cuts it most wants it; readers come later in
/// program order, so one walk backwards reaches all.
void decide_free_values(const Program& program, const Mesh& mesh, Plan& plan) {
  const auto offer = [&](std::int32_t value, const Sharding& wanted) {
    if (value == no_value || !program.values[value].is_free) return;
    if (num_shards(wanted, mesh) > num_shards(plan.values[value], mesh)) {
      plan.values[value] = wanted;
    }
  };
  for (const Join& join : program.joins) offer(join.source, plan.values[join.target]);
  for (std::size_t i = program.ops.size(); i-- > 0;) {
    const Op& op = program.ops[i];
    const Rule& rule = program.rules[op.rule];
    for (std::size_t k = 0; k < op.results.size(); ++k) {
      const std::int32_t value = op.results[k];
      if (value == no_value || !program.values[value].is_free) continue;
      if (auto axes = lift(rule, rule.results[k], plan.values[value], mesh)) {
        plan.ops[i] = *axes;
      } else {
        plan.values[value] = project(rule.results[k], plan.ops[i]);
      }
    }
    for (std::size_t k = 0; k < op.operands.size(); ++k) {
      if (op.operands[k] != no_value)
        offer(op.operands[k], project(rule.operands[k], plan.ops[i]));
    }
  }
}

/// A reader of a copy: how it wants it, and how often it runs.
struct Wish {
  Sharding sharding;
  double trips;
};

/// The sharding of a copy of a value that is held as `held`: that, or what one of its readers
/// wants, whichever is cheapest for all of them together.
Sharding cheapest_copy(const TensorType& type, const Sharding& held, double copy_trips,
                       const std::vector<Wish>& wishes, const Costs& costs) {
  const auto cost = [&](const Sharding& copy) {
    double total = copy_trips * costs.reshard(type, held, copy, 0);
    for (const Wish& wish : wishes) {
      total += wish.trips * costs.reshard(type, copy, wish.sharding, 0);
    }
    return total;
  };
  const Sharding* best = &held;
  double least = cost(held);
  for (const Wish& wish : wishes) {
    const double reached = cost(wish.sharding);
    if (!(reached < least)) continue;
    least = reached;
    best = &wish.sharding;
  }
  return *best;
}

/// As the plan has the values, and the copies of them that cost least.
std::vector<Sharding> shardings_of_classes(const Program& program, const Classes& classes,
                                           const Plan& plan, const Costs& costs) {
  std::vector<Sharding> result;
  for (const ShardingClass& sharding_class : classes.values)
    result.push_back(plan.values[sharding_class.value]);
  std::vector<std::vector<Wish>> wishes(classes.values.size());
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    for (std::size_t k = 0; k < op.operands.size(); ++k) {
      const std::int32_t sharding_class = classes.operand_class[classes.operand_offset[i] + k];
      if (sharding_class < 0 || classes.values[sharding_class].source < 0) continue;
      const Sharding wanted = project(program.rules[op.rule].operands[k], plan.ops[i]);
      const auto equal =
          std::find_if(wishes[sharding_class].begin(), wishes[sharding_class].end(),
                       [&](const Wish& w) { return w.sharding == wanted; });
      if (equal == wishes[sharding_class].end()) {
        wishes[sharding_class].push_back({wanted, op.trips});
      } else {
        equal->trips += op.trips;
      }
    }
  }
  std::vector<double> trips(classes.values.size(), 0.0);
  for (const Copy& copy : classes.copies) trips[copy.sharding_class] += copy.trips;
  for (std::size_t c = 0; c < result.size(); ++c) {
    const ShardingClass& sharding_class = classes.values[c];
    if (sharding_class.source < 0) continue;
    result[c] = cheapest_copy(program.types[sharding_class.type],
                              plan.values[sharding_class.value], trips[c], wishes[c], costs);
  }
  return result;
}

}  // namespace

/// Every place where a plan's shardings differ. Free values are copied, not resharded, and
/// readers that want a value in one sharding share one copy: the first one's.
std::vector<PlannedReshard> reshards_of(const Program& program, const Plan& plan) {
  using Place = PlannedReshard::Place;
  std::vector<PlannedReshard> found;
  std::unordered_set<std::string> copies;
  const auto add = [&](Place place, std::size_t index, std::size_t position,
                       std::int32_t value, const Sharding& from, const Sharding& to,
                       AxisMask partial, double trips) {
    if (from == to && partial == 0) return;
    found.push_back(
        {place, static_cast<std::int32_t>(index), static_cast<std::int32_t>(position), value,
         from, to, partial,
         reshard(program.types[program.values[value].type], from, to, partial, program.mesh),
         trips});
  };
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    if (op.is_unread) continue;
    const Rule& rule = program.rules[op.rule];
    const AxisMask partial = partial_axes(rule, plan.ops[i]);
    for (std::size_t k = 0; k < op.operands.size(); ++k) {
      const std::int32_t v = op.operands[k];
      if (v == no_value || program.values[v].is_free) continue;
      const Sharding wanted = project(rule.operands[k], plan.ops[i]);
      if (!copies.insert(std::to_string(v) + ":" + key(wanted)).second) continue;
      add(Place::operand, i, k, v, plan.values[v], wanted, 0, op.trips);
    }
    for (std::size_t k = 0; k < op.results.size(); ++k) {
      const std::int32_t v = op.results[k];
      if (v != no_value) {
        add(Place::result, i, k, v, project(rule.results[k], plan.ops[i]), plan.values[v],
            partial, op.trips);
      } else if (partial != 0) {
        found.push_back({Place::result,
                         static_cast<std::int32_t>(i),
                         static_cast<std::int32_t>(k),
                         no_value,
                         {},
                         {},
                         partial,
                         reshard(scalar_type, {}, {}, partial, program.mesh),
                         op.trips});
      }
    }
  }
  for (std::size_t j = 0; j < program.joins.size(); ++j) {
    const Join& join = program.joins[j];
    if (program.values[join.source].is_free) continue;
    add(Place::join, j, 0, join.source, plan.values[join.source], plan.values[join.target], 0,
        join.trips);
  }
  return found;
}

Plan plan_of(const Program& program, const Mesh& mesh, const Classes& classes,
             const Assignment& assignment) {
  Plan plan;
  for (std::size_t v = 0; v < program.values.size(); ++v) {
    const std::int32_t sharding_class = classes.class_of_value[v];
    plan.values.push_back(sharding_class >= 0
                              ? assignment.sharding(sharding_class)
                              : Sharding{std::vector<AxisList>(
                                    program.types[program.values[v].type].dims.size())});
  }
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    plan.ops.push_back(assignment.axes(classes.class_of_op[i]));
  }
  decide_free_values(program, mesh, plan);
  return plan;
}

Assignment assignment_of(const Program& program, const Classes& classes, const Costs& costs,
                         const Plan& plan) {
  Assignment assignment{shardings_of_classes(program, classes, plan, costs), {}};
  for (const OpClass& op_class : classes.ops) assignment.ops.push_back(plan.ops[op_class.op]);
  return assignment;
}

Sharding result_of(const Program& program, const Plan& plan, std::size_t op,
                   std::size_t result) {
  const Rule& rule = program.rules[program.ops[op].rule];
  const Sharding natural = project(rule.results[result], plan.ops[op]);
  const std::int32_t value = program.ops[op].results[result];
  const AxisMask partial = partial_axes(rule, plan.ops[op]);
  if (value == no_value || partial == 0 ||
      !is_made_scattered(rule, plan.ops[op], program.mesh))
    return natural;
  const Sharding& target = plan.values[value];
  return is_scattered(natural, target, partial) ? target : natural;
}

void verify(const Program& program, const Mesh& mesh, const Plan& plan) {
  const auto check_sharding = [&](const Sharding& sharding, const TensorType& type,
                                  const std::string& where) {
    AxisMask seen = 0;
    if (sharding.dims.size() != type.dims.size()) throw std::logic_error("rank of " + where);
    for (std::size_t d = 0; d < sharding.dims.size(); ++d) {
      for (AxisIndex axis : sharding.dims[d]) {
        if (axis >= mesh.rank()) throw std::logic_error("unknown axis in " + where);
        if ((seen >> axis) & 1u) throw std::logic_error("axis twice in " + where);
        seen |= 1u << axis;
      }
      if (type.dims[d] % num_shards(sharding.dims[d], mesh) != 0) {
        throw std::logic_error("uneven split of " + where);
      }
    }
  };
  if (plan.values.size() != program.values.size() || plan.ops.size() != program.ops.size()) {
    throw std::logic_error("plan and program differ in size");
  }
  for (std::size_t v = 0; v < plan.values.size(); ++v) {
    check_sharding(plan.values[v], program.types[program.values[v].type],
                   "value " + std::to_string(v));
  }
  for (const Pin& pin : program.pins) {
    if (program.values[pin.value].is_free) continue;
    if (!allows(pin, plan.values[pin.value], mesh)) {
      throw std::logic_error("pin not kept at value " + std::to_string(pin.value));
    }
  }
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    const Rule& rule = program.rules[op.rule];
    const std::string where = "op " + std::to_string(i);
    for (std::size_t f = 0; f < rule.factors.size(); ++f) {
      if (rule.factors[f].kind == FactorKind::need_replication && !plan.ops[i][f].empty()) {
        throw std::logic_error("uncuttable factor cut at " + where);
      }
    }
    for (const auto* tensors : {&rule.operands, &rule.results}) {
      for (const RuleTensor& tensor : *tensors) {
        if (tensor.type == no_type) continue;
        check_sharding(project(tensor, plan.ops[i]), program.types[tensor.type], where);
      }
    }
    for (std::size_t k = 0; k < op.operands.size(); ++k) {
      const std::int32_t v = op.operands[k];
      if (!op.kept_operands[k]) continue;
      if (v == no_value || program.values[v].is_free) continue;
      if (!(project(rule.operands[k], plan.ops[i]) == plan.values[v])) {
        throw std::logic_error("kept operand resharded at " + where);
      }
    }
  }
}

}  // namespace autoshard::planning
