#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

#include "bindings/bindings.h"
#include "planning/estimate.h"
#include "planning/propagation.h"
#include "planning/recursive_programming.h"
#include "planning/symbolic_programming.h"

namespace nb = nanobind;

namespace autoshard {
namespace {

/// Distinct shardings in the order in which they were first seen.
class ShardingTable {
 public:
  std::int32_t index(const Sharding& sharding) {
    auto [entry, is_new] =
        indices_.try_emplace(sharding.dims, static_cast<std::int32_t>(list.size()));
    if (is_new) {
      std::vector<std::vector<std::int32_t>> dims;
      for (const AxisList& axes : sharding.dims) dims.emplace_back(axes.begin(), axes.end());
      list.push_back(std::move(dims));
    }
    return entry->second;
  }
  std::vector<std::vector<std::vector<std::int32_t>>> list;

 private:
  std::unordered_map<std::vector<AxisList>, std::int32_t, AxisListsHash> indices_;
};

/// A plan by numbers: `shardings` holds each distinct sharding once, everything else refers to
/// it.
struct PlanView {
  std::vector<std::vector<std::vector<std::int32_t>>> shardings;
  std::vector<std::int32_t> value_sharding;
  /// Distinct strategies: shardings of operands and of results, -1 for rank 0.
  std::vector<std::pair<std::vector<std::int32_t>, std::vector<std::int32_t>>> strategies;
  std::vector<std::int32_t> op_strategy;
  /// (place, index, position, value, from, to, partial axes, bytes, collectives, trips)
  std::vector<std::tuple<int, int, int, int, int, int, std::uint32_t, double, int, double>>
      redistributions;
  double redistributed_bytes, objective, lower_bound;
  int levels;

  // Of plans by recursive programming; else empty.

  /// (kind, axes, participants, held bytes, seconds)
  using StepView = std::tuple<int, std::uint32_t, std::int64_t, double, double>;
  /// Of each redistribution.
  std::vector<std::vector<StepView>> steps;
  /// All steps in a row: (place, index, value, trips, kind, axes, participants, held bytes,
  /// seconds).
  std::vector<
      std::tuple<int, int, int, double, int, std::uint32_t, std::int64_t, double, double>>
  collectives() const {
    decltype(collectives()) rows;
    for (std::size_t r = 0; r < steps.size(); ++r) {
      const auto& move = redistributions[r];
      for (const auto& [kind, axes, participants, held, seconds] : steps[r]) {
        rows.emplace_back(std::get<0>(move), std::get<1>(move), std::get<3>(move),
                          std::get<9>(move), kind, axes, participants, held, seconds);
      }
    }
    return rows;
  }
  std::vector<std::vector<int>> axis_groups;
  double step_seconds = 0, compute_seconds = 0, communication_seconds = 0;
  double peak_bytes = 0;
  std::int32_t peak_moment = 0;
  std::vector<std::pair<std::int32_t, double>> peak_values;
  double mem_coeff = 0, lower_bound_seconds = 0;
  bool bound_is_joint = false;
  std::int64_t op_classes = 0, rounds = 0;
  std::vector<std::pair<std::string, double>> phases;
  /// One an op, once.
  std::vector<double> op_seconds, op_flops, op_bytes;
  /// To start again from.
  std::shared_ptr<const planning::Plan> plan;
  std::shared_ptr<const planning::KnownProgram> known;
  /// While each op runs; of `estimate` only.
  std::vector<double> live_bytes;
};

PlanView view(const Program& program, const planning::Plan& plan) {
  PlanView result;
  ShardingTable table;
  for (const Sharding& s : plan.values) result.value_sharding.push_back(table.index(s));
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
      seen.push_back(v == no_value ? -1 : result.value_sharding[v]);
    }
    auto [known, is_first] = alike.try_emplace(seen, -1);
    if (!is_first) {
      result.op_strategy.push_back(known->second);
      continue;
    }
    std::vector<std::int32_t> operands, results;
    for (const RuleTensor& t : rule.operands) {
      operands.push_back(t.type == no_type ? -1
                                           : table.index(planning::project(t, plan.ops[i])));
    }
    for (std::size_t k = 0; k < op.results.size(); ++k) {
      const std::int32_t v = op.results[k];
      results.push_back(v == no_value ? -1
                                      : table.index(planning::result_of(program, plan, i, k)));
    }
    std::vector<std::int32_t> id = operands;
    id.push_back(-2);
    id.insert(id.end(), results.begin(), results.end());
    auto [entry, is_new] = strategies.try_emplace(
        std::move(id), static_cast<std::int32_t>(result.strategies.size()));
    if (is_new) result.strategies.emplace_back(std::move(operands), std::move(results));
    known->second = entry->second;
    result.op_strategy.push_back(entry->second);
  }
  for (const auto& r : plan.redistributions) {
    result.redistributions.emplace_back(
        static_cast<int>(r.place), r.index, r.position, r.value, table.index(r.from),
        table.index(r.to), r.partial, r.volume.bytes, r.volume.collectives, r.trips);
  }
  result.shardings = std::move(table.list);
  result.redistributed_bytes = plan.redistributed_bytes;
  result.objective = plan.objective;
  result.lower_bound = plan.lower_bound;
  result.levels = plan.levels;
  return result;
}

PlanView view(const Program& program, planning::RecursivePlan found) {
  PlanView result = view(program, found.plan);
  for (const planning::CostedMove& move : found.costs.moves) {
    std::vector<PlanView::StepView> steps;
    for (std::size_t k = 0; k < move.steps.size(); ++k) {
      const Step& step = move.steps[k];
      steps.emplace_back(static_cast<int>(step.kind), step.axes, step.participants,
                         step.held_bytes, move.step_seconds[k]);
    }
    result.steps.push_back(std::move(steps));
  }
  result.axis_groups = found.axis_groups;
  result.step_seconds = found.costs.step_seconds;
  result.compute_seconds = found.costs.compute_seconds;
  result.communication_seconds = found.costs.communication_seconds;
  result.peak_bytes = found.costs.peak.bytes;
  result.peak_moment = found.costs.peak.moment;
  result.peak_values = found.costs.peak.live;
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
  }
  result.plan = std::make_shared<const planning::Plan>(std::move(found.plan));
  result.known = found.known;
  return result;
}

planning::Plan given_plan(
    const Program& program,
    const std::vector<std::vector<std::vector<std::int32_t>>>& shardings,
    const std::vector<std::int32_t>& value_sharding,
    const std::vector<std::pair<std::vector<std::int32_t>, std::vector<std::int32_t>>>&
        strategies,
    const std::vector<std::int32_t>& op_strategy) {
  if (value_sharding.size() != program.values.size() ||
      op_strategy.size() != program.ops.size()) {
    throw InvalidProgram("plan and program differ in size");
  }
  std::vector<Sharding> table;
  for (const auto& dims : shardings) {
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
  planning::Plan plan;
  for (std::int32_t index : value_sharding) plan.values.push_back(table.at(index));
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Rule& rule = program.rules[program.ops[i].rule];
    const auto& [operands, results] = strategies.at(op_strategy[i]);
    try {
      plan.ops.push_back(planning::factors_of(rule, side(operands, rule.operands.size()),
                                              side(results, rule.results.size()),
                                              program.mesh));
    } catch (const InvalidProgram& error) {
      throw InvalidProgram(error.what() + std::string(" at op ") + std::to_string(i));
    }
  }
  return plan;
}

}  // namespace

void bind_planning(nb::module_& module) {
  nb::class_<PlanView>(module, "CorePlan",
                       "A plan by numbers; see passes/planning/propagation.h.")
      .def_ro("shardings", &PlanView::shardings)
      .def_ro("value_sharding", &PlanView::value_sharding)
      .def_ro("strategies", &PlanView::strategies)
      .def_ro("op_strategy", &PlanView::op_strategy)
      .def_ro("redistributions", &PlanView::redistributions)
      .def_ro("redistributed_bytes", &PlanView::redistributed_bytes)
      .def_ro("objective", &PlanView::objective)
      .def_ro("lower_bound", &PlanView::lower_bound)
      .def_ro("levels", &PlanView::levels)
      .def_ro("steps", &PlanView::steps)
      .def_prop_ro("collectives", &PlanView::collectives)
      .def_ro("axis_groups", &PlanView::axis_groups)
      .def_ro("step_seconds", &PlanView::step_seconds)
      .def_ro("compute_seconds", &PlanView::compute_seconds)
      .def_ro("communication_seconds", &PlanView::communication_seconds)
      .def_ro("peak_bytes", &PlanView::peak_bytes)
      .def_ro("peak_moment", &PlanView::peak_moment)
      .def_ro("peak_values", &PlanView::peak_values)
      .def_ro("mem_coeff", &PlanView::mem_coeff)
      .def_ro("lower_bound_seconds", &PlanView::lower_bound_seconds)
      .def_ro("bound_is_joint", &PlanView::bound_is_joint)
      .def_ro("op_classes", &PlanView::op_classes)
      .def_ro("rounds", &PlanView::rounds)
      .def_ro("phases", &PlanView::phases)
      .def_ro("op_seconds", &PlanView::op_seconds)
      .def_ro("op_flops", &PlanView::op_flops)
      .def_ro("op_bytes", &PlanView::op_bytes)
      .def_ro("live_bytes", &PlanView::live_bytes);

  static nb::exception<planning::DoesNotFit> does_not_fit(module, "DoesNotFit");
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const planning::DoesNotFit& d) {
      nb::object args =
          nb::make_tuple(std::string(d.what()), d.peak.bytes, d.limit, d.peak.live);
      PyErr_SetObject(does_not_fit.ptr(), args.ptr());
    }
  });

  static nb::exception<planning::Contradiction> contradiction(module, "Contradiction");
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const planning::Contradiction& c) {
      nb::object args = nb::make_tuple(std::string(c.what()), c.op, c.value);
      PyErr_SetObject(contradiction.ptr(), args.ptr());
    }
  });

  module.def(
      "propagate",
      [](const Program& program, std::int64_t max_options, int sweeps, std::uint64_t seed) {
        planning::PropagationOptions options{max_options, sweeps, seed};
        const planning::Plan plan = planning::propagate(program, options);
        return view(program, plan);
      },
      nb::arg("program"), nb::kw_only(), nb::arg("max_options") = 160, nb::arg("sweeps") = 2,
      nb::arg("seed") = 0,
      "The plan of least redistribution; raises Contradiction(message, op, value).");

  module.def(
      "recursive_programming",
      [](const Program& program, const Cluster& cluster, std::optional<double> mem_coeff,
         double memory_limit, int sweeps, bool joint, bool fold, bool merge_axes,
         double time_limit, std::uint64_t seed) {
        planning::RecursiveOptions options;
        options.mem_coeff = mem_coeff;
        options.memory_limit = memory_limit;
        options.sweeps = sweeps;
        options.joint = joint;
        options.fold = fold;
        options.merge_axes = merge_axes;
        options.time_limit = time_limit;
        options.seed = seed;
        return view(program, planning::recursive_programming(program, cluster, options));
      },
      nb::arg("program"), nb::arg("cluster"), nb::kw_only(), nb::arg("mem_coeff").none(),
      nb::arg("memory_limit"), nb::arg("sweeps") = 2, nb::arg("joint") = true,
      nb::arg("fold") = true, nb::arg("merge_axes") = true,
      nb::arg("time_limit") = std::numeric_limits<double>::infinity(), nb::arg("seed") = 0,
      nb::call_guard<nb::gil_scoped_release>(),
      "The plan of least step time that fits; raises Contradiction(message, op, value) or "
      "DoesNotFit(message, peak bytes, limit, [(value, bytes)]).");

  module.def(
      "estimate",
      [](const Program& program, const Cluster& cluster,
         const std::vector<std::vector<std::vector<std::int32_t>>>& shardings,
         const std::vector<std::int32_t>& value_sharding,
         const std::vector<std::pair<std::vector<std::int32_t>, std::vector<std::int32_t>>>&
             strategies,
         const std::vector<std::int32_t>& op_strategy) {
        planning::RecursivePlan given;
        given.plan = given_plan(program, shardings, value_sharding, strategies, op_strategy);
        given.mesh = program.mesh;
        for (int axis = 0; axis < program.mesh.rank(); ++axis) {
          given.axis_groups.push_back({axis});
        }
        given.costs = planning::estimate(program, cluster, given.plan);
        for (const planning::CostedMove& move : given.costs.moves) {
          given.plan.redistributions.push_back(move.move);
        }
        given.plan.redistributed_bytes = given.costs.sent_bytes;
        std::vector<double> live = planning::live_bytes(program, cluster, given.plan);
        PlanView result = view(program, std::move(given));
        result.live_bytes = std::move(live);
        return result;
      },
      nb::arg("program"), nb::arg("cluster"), nb::kw_only(), nb::arg("shardings"),
      nb::arg("value_sharding"), nb::arg("strategies"), nb::arg("op_strategy"),
      "What a given plan costs, by the numbers of `CorePlan`: a table of shardings, the "
      "sharding "
      "of each value, a table of strategies, the strategy of each op.");

  module.def(
      "replan",
      [](const Program& program, const Cluster& cluster, const PlanView& previous,
         std::optional<double> mem_coeff, double memory_limit, int sweeps, double time_limit,
         std::uint64_t seed) {
        if (!previous.plan || !previous.known) {
          throw std::invalid_argument("only a plan by recursive programming can be changed");
        }
        if (previous.plan->values.size() != program.values.size() ||
            previous.plan->ops.size() != program.ops.size()) {
          throw InvalidProgram("plan and program differ in size");
        }
        planning::RecursiveOptions options;
        options.mem_coeff = mem_coeff;
        options.memory_limit = memory_limit;
        options.sweeps = sweeps;
        options.time_limit = time_limit;
        options.seed = seed;
        return view(program, planning::replan(program, cluster, *previous.plan,
                                              *previous.known, previous.mem_coeff, options));
      },
      nb::arg("program"), nb::arg("cluster"), nb::arg("previous"), nb::kw_only(),
      nb::arg("mem_coeff").none(), nb::arg("memory_limit"), nb::arg("sweeps") = 2,
      nb::arg("time_limit") = std::numeric_limits<double>::infinity(), nb::arg("seed") = 0,
      "A plan of the same program, on the mesh of `previous`, with other pins.");

  module.def(
      "recursive_programming_network",
      [](const Program& program, const Cluster& cluster) {
        return planning::joint_network(program, cluster);
      },
      nb::arg("program"), nb::arg("cluster"),
      "The cost network in seconds of all mesh axes together, for other solvers and for "
      "tests.");

  module.def(
      "symbolic_programming",
      [](const Program& program, double mem_coeff, std::int64_t max_options, int sweeps,
         std::uint64_t seed) {
        planning::SymbolicOptions options{mem_coeff, max_options, sweeps, seed};
        planning::SymbolicPlan found = planning::symbolic_programming(program, options);
        return std::make_pair(view(program, found.plan), std::move(found.choices));
      },
      nb::arg("program"), nb::arg("mem_coeff"), nb::kw_only(), nb::arg("max_options") = 160,
      nb::arg("sweeps") = 2, nb::arg("seed") = 0,
      "The plan of least symbolic cost, and what each matmul could choose at each level; "
      "raises Contradiction(message, op, value).");

  module.def(
      "propagation_network",
      [](const Program& program, std::int64_t max_options) {
        return planning::first_network(program, {max_options});
      },
      nb::arg("program"), nb::kw_only(), nb::arg("max_options") = 160,
      "The cost network of all mesh axes, or of the first one, for other solvers and for "
      "tests.");
}

}  // namespace autoshard
