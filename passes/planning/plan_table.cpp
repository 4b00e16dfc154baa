#include "planning/plan_table.h"

#include <map>
#include <stdexcept>
#include <unordered_map>

#include "planning/estimate.h"
#include "planning/propagation.h"

namespace autoshard::planning {
namespace {

/// Distinct shardings in the order in which they were first seen.
class ShardingTable {
 public:
  std::int32_t index(const Sharding& sharding) {
    auto [entry, is_new] =
        indices_.try_emplace(sharding.dims, static_cast<std::int32_t>(list.size()));
    if (is_new) {
      AxisNumbers dims;
      for (const AxisList& axes : sharding.dims) dims.emplace_back(axes.begin(), axes.end());
      list.push_back(std::move(dims));
    }
    return entry->second;
  }
  std::vector<AxisNumbers> list;

 private:
  std::unordered_map<std::vector<AxisList>, std::int32_t, AxisListsHash> indices_;
};

Plan plan_of(const Program& program, const CutTable& cuts) {
  if (cuts.value_sharding.size() != program.values.size() ||
      cuts.op_strategy.size() != program.ops.size()) {
    throw InvalidProgram("plan and program differ in size");
  }
  std::vector<Sharding> table;
  for (const auto& dims : cuts.shardings) {
    Sharding sharding;
    for (const auto& axes : dims) {
      for (std::int32_t axis : axes) {
        if (axis < 0 || axis >= program.mesh.rank()) throw InvalidProgram("unknown axis");
      }
      sharding.dims.emplace_back(axes.begin(), axes.end());
    }
    table.push_back(std::move(sharding));
  }
  const auto side = [&](const std::vector<std::int32_t>& indices, std::size_t count) {
    if (indices.size() != count) throw InvalidProgram("a strategy of another op");
    std::vector<const Sharding*> found;
    for (std::int32_t index : indices) found.push_back(index < 0 ? nullptr : &table.at(index));
    return found;
  };
  Plan plan;
  for (std::int32_t index : cuts.value_sharding) plan.values.push_back(table.at(index));
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Rule& rule = program.rules[program.ops[i].rule];
    const auto& [operands, results] = cuts.strategies.at(cuts.op_strategy[i]);
    try {
      plan.ops.push_back(factors_of(rule, side(operands, rule.operands.size()),
                                    side(results, rule.results.size()), program.mesh));
    } catch (const InvalidProgram& error) {
      throw InvalidProgram(error.what() + std::string(" at op ") + std::to_string(i));
    }
  }
  return plan;
}

}  // namespace

PlanTable table_of(const Program& program, const Plan& plan) {
  PlanTable result;
  CutTable& cuts = result.cuts;
  ShardingTable table;
  for (const Sharding& s : plan.values) cuts.value_sharding.push_back(table.index(s));
  std::map<std::vector<std::int32_t>, std::int32_t> strategies;
  // Ops of one rule whose factors and results are cut alike have one strategy.
  std::unordered_map<FactorAxes, std::int32_t, AxisListsHash> numbers;
  std::map<std::vector<std::int32_t>, std::int32_t> alike;
  std::vector<std::int32_t> seen;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    const Rule& rule = program.rules[op.rule];
    seen = {op.rule,
            numbers.try_emplace(plan.ops[i], static_cast<std::int32_t>(numbers.size()))
                .first->second};
    for (std::int32_t v : op.results) {
      seen.push_back(v == no_value ? -1 : cuts.value_sharding[v]);
    }
    auto [known, is_first] = alike.try_emplace(seen, -1);
    if (!is_first) {
      cuts.op_strategy.push_back(known->second);
      continue;
    }
    std::vector<std::int32_t> operands, results;
    for (const RuleTensor& t : rule.operands) {
      operands.push_back(t.type == no_type ? -1 : table.index(project(t, plan.ops[i])));
    }
    for (std::size_t k = 0; k < op.results.size(); ++k) {
      const std::int32_t v = op.results[k];
      results.push_back(v == no_value ? -1 : table.index(result_of(program, plan, i, k)));
    }
    std::vector<std::int32_t> id = operands;
    id.push_back(-2);
    id.insert(id.end(), results.begin(), results.end());
    auto [entry, is_new] = strategies.try_emplace(
        std::move(id), static_cast<std::int32_t>(cuts.strategies.size()));
    if (is_new) cuts.strategies.emplace_back(std::move(operands), std::move(results));
    known->second = entry->second;
    cuts.op_strategy.push_back(entry->second);
  }
  ReshardTable& moves = result.reshards;
  for (const PlannedReshard& r : plan.reshards) {
    moves.place.push_back(r.place);
    moves.index.push_back(r.index);
    moves.position.push_back(r.position);
    moves.value.push_back(r.value);
    moves.from.push_back(table.index(r.from));
    moves.to.push_back(table.index(r.to));
    moves.partial.push_back(r.partial);
    moves.bytes.push_back(r.volume.bytes);
    moves.collectives.push_back(r.volume.collectives);
    moves.trips.push_back(r.trips);
  }
  cuts.shardings = std::move(table.list);
  result.resharded_bytes = plan.resharded_bytes;
  result.objective = plan.objective;
  result.lower_bound = plan.lower_bound;
  result.levels = plan.levels;
  return result;
}

PlanTable table_of(const Program& program, RecursivePlan found) {
  PlanTable result = table_of(program, found.plan);
  CollectiveTable& rows = result.collectives;
  for (std::size_t r = 0; r < found.costs.moves.size(); ++r) {
    const CostedMove& move = found.costs.moves[r];
    for (std::size_t k = 0; k < move.steps.size(); ++k) {
      const Step& step = move.steps[k];
      rows.reshard.push_back(static_cast<std::int32_t>(r));
      rows.kind.push_back(step.kind);
      rows.axes.push_back(step.axes);
      rows.participants.push_back(step.participants);
      rows.held_bytes.push_back(step.held_bytes);
      rows.seconds.push_back(move.step_seconds[k]);
      rows.exposed_seconds.push_back(found.costs.schedule.exposed[r][k]);
      rows.slack_seconds.push_back(found.costs.schedule.slack[r][k]);
    }
  }
  result.axis_groups = found.axis_groups;
  result.step_seconds = found.costs.step_seconds;
  result.compute_seconds = found.costs.compute_seconds;
  result.communication_seconds = found.costs.communication_seconds;
  result.scheduled_seconds = found.costs.schedule.scheduled_seconds;
  result.all_hidden_seconds = found.costs.schedule.all_hidden_seconds;
  result.peak = found.costs.peak;
  result.limited_bytes = found.limited_bytes;
  result.mem_coeff = found.mem_coeff;
  result.lower_bound_seconds = found.lower_bound_seconds;
  result.bound_is_joint = found.bound_is_joint;
  result.op_classes = found.op_classes;
  result.rounds = found.rounds;
  result.phases = found.phases;
  for (const Compute& op : found.costs.ops) {
    result.op_seconds.push_back(op.seconds);
    result.op_flops.push_back(op.flops);
    result.op_bytes.push_back(op.bytes);
    result.op_packed_bytes.push_back(op.packed_bytes);
  }
  result.live_bytes = std::move(found.costs.live_bytes);
  result.transient_bytes = std::move(found.costs.transient_bytes);
  result.plan = std::make_shared<const Plan>(std::move(found.plan));
  result.known = found.known;
  if (found.known) result.memory = found.known->memory;
  return result;
}

PlanTable estimate_table(const Program& program, const Cluster& cluster, const CutTable& cuts,
                         std::shared_ptr<const ProgramMemory> memory) {
  RecursivePlan given;
  given.plan = plan_of(program, cuts);
  given.mesh = program.mesh;
  for (int axis = 0; axis < program.mesh.rank(); ++axis) given.axis_groups.push_back({axis});
  if (!memory) {
    check(program);
    memory = std::make_shared<const ProgramMemory>(memory_of(program, cluster.compiler));
  }
  given.costs = estimate(program, cluster, given.plan, *memory);
  for (const CostedMove& move : given.costs.moves) {
    given.plan.reshards.push_back(move.move);
  }
  given.plan.resharded_bytes = given.costs.sent_bytes;
  PlanTable table = table_of(program, std::move(given));
  table.memory = std::move(memory);
  return table;
}

namespace {

/// What there is to start from: a plan, and what is known of its program.
struct Previous {
  const Plan& plan;
  std::shared_ptr<const KnownProgram> known;
};

Previous previous_of(const Program& program, const Cluster& cluster, const PlanTable& table) {
  if (!table.plan) {
    throw std::invalid_argument("only a plan with costs can be changed");
  }
  if (table.plan->values.size() != program.values.size() ||
      table.plan->ops.size() != program.ops.size()) {
    throw InvalidProgram("plan and program differ in size");
  }
  if (table.known) return {*table.plan, table.known};
  const auto memory =
      std::make_shared<const ProgramMemory>(memory_of(program, cluster.compiler));
  return {*table.plan, std::make_shared<const KnownProgram>(
                           KnownProgram{memory, classes_of(program, memory.get(), {}), {}})};
}

}  // namespace

std::optional<PlanTable> replan_near_table(const Program& program, const Cluster& cluster,
                                           const PlanTable& previous,
                                           std::optional<double> price,
                                           const RecursiveOptions& options) {
  const Previous from = previous_of(program, cluster, previous);
  std::optional<RecursivePlan> found = replan_near(
      program, cluster, from.plan, *from.known, price.value_or(previous.mem_coeff), options);
  if (!found) return std::nullopt;
  return table_of(program, std::move(*found));
}

PlanTable replan_table(const Program& program, const Cluster& cluster,
                       const PlanTable& previous, std::optional<double> price,
                       const RecursiveOptions& options) {
  const Previous from = previous_of(program, cluster, previous);
  return table_of(program, replan(program, cluster, from.plan, *from.known,
                                  price.value_or(previous.mem_coeff), options));
}

}  // namespace autoshard::planning
