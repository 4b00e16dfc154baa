#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <span>
#include <utility>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "cost/compute.h"
#include "planning/alike_ops.h"
#include "planning/plan_table.h"
#include "planning/propagation.h"
#include "planning/recursive_programming.h"
#include "planning/symbolic_programming.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace autoshard {

using planning::AlikeOps;
using planning::CollectiveTable;
using planning::CutTable;
using planning::PlanTable;
using planning::ReshardTable;

namespace {

using Show = std::optional<nb::typed<nb::callable, bool(std::string, std::int64_t, double,
                                                        std::vector<std::int64_t>, bool)>>;

/// Runs Python's handlers of signals, then asks `show`, which may be null and outlives the
/// search: it is copied by threads without the interpreter's lock.
planning::Watcher watcher_of(nb::handle show) {
  return [show](const planning::SearchState& state) {
    const nb::gil_scoped_acquire acquire;
    bool is_interrupted = false;
    if (PyErr_CheckSignals() < 0) {
      is_interrupted = PyErr_ExceptionMatches(PyExc_KeyboardInterrupt);
      if (!show || !is_interrupted) throw nb::python_error();
      PyErr_Clear();
    }
    if (!show) return true;
    return nb::cast<bool>(
        show(state.phase, state.plans, state.best_seconds, state.best_mesh, is_interrupted));
  };
}

void bind_tables(nb::module_& module) {
  nb::class_<ReshardTable>(module, "ReshardTable",
                           "The reshards of a plan, in columns of one row each; "
                           "see `PlannedReshard` in passes/planning/plan.h.")
      .def("__len__", [](const ReshardTable& t) { return t.place.size(); })
      .def_ro("place", &ReshardTable::place)
      .def_ro("index", &ReshardTable::index, "Number of the op, or of the join.")
      .def_ro("position", &ReshardTable::position, "Which operand or result.")
      .def_ro("value", &ReshardTable::value)
      .def_ro("from_sharding", &ReshardTable::from, "Row of the plan's shardings.")
      .def_ro("to_sharding", &ReshardTable::to)
      .def_ro("partial_axes", &ReshardTable::partial, "One bit a mesh axis.")
      .def_ro("bytes", &ReshardTable::bytes, "What a device sends in one run.")
      .def_ro("collectives", &ReshardTable::collectives, "How many.")
      .def_ro("trips", &ReshardTable::trips, "How often it runs.");

  nb::class_<CollectiveTable>(module, "CollectiveTable",
                              "The collectives of all reshards of a plan with costs, in "
                              "columns of one row each.")
      .def("__len__", [](const CollectiveTable& t) { return t.kind.size(); })
      .def_ro("reshard", &CollectiveTable::reshard, "Row of the reshard that it is a step of.")
      .def_ro("kind", &CollectiveTable::kind)
      .def_ro("axes", &CollectiveTable::axes, "One bit a mesh axis.")
      .def_ro("participants", &CollectiveTable::participants)
      .def_ro("held_bytes", &CollectiveTable::held_bytes, "By a device before it.")
      .def_ro("seconds", &CollectiveTable::seconds, "Seconds of one run.")
      .def_ro("exposed_seconds", &CollectiveTable::exposed_seconds,
              "Seconds of all runs of a step in which nothing else is done.")
      .def_ro("slack_seconds", &CollectiveTable::slack_seconds,
              "How much longer one run could take until something waited for it.");
}

}  // namespace

void bind_planning(nb::module_& module) {
  bind_tables(module);
  nb::class_<PlanTable>(module, "CorePlan",
                        "A plan by numbers; see passes/planning/plan_table.h.")
      .def_prop_ro("shardings",
                   [](const PlanTable& p) -> const auto& { return p.cuts.shardings; })
      .def_prop_ro("value_sharding",
                   [](const PlanTable& p) -> const auto& { return p.cuts.value_sharding; })
      .def_prop_ro(
          "strategies", [](const PlanTable& p) -> const auto& { return p.cuts.strategies; },
          "Rows of the shardings of operands and of results; -1: rank 0.")
      .def_prop_ro("op_strategy",
                   [](const PlanTable& p) -> const auto& { return p.cuts.op_strategy; })
      .def_ro("reshards", &PlanTable::reshards)
      .def_ro("resharded_bytes", &PlanTable::resharded_bytes)
      .def_ro("objective", &PlanTable::objective)
      .def_ro("lower_bound", &PlanTable::lower_bound)
      .def_ro("levels", &PlanTable::levels)
      .def_ro("collectives", &PlanTable::collectives)
      .def_ro("axis_groups", &PlanTable::axis_groups)
      .def_ro("step_seconds", &PlanTable::step_seconds)
      .def_ro("compute_seconds", &PlanTable::compute_seconds)
      .def_ro("communication_seconds", &PlanTable::communication_seconds)
      .def_ro("scheduled_seconds", &PlanTable::scheduled_seconds,
              "Seconds of the step with hidden what the compiler hides; see PlanSchedule in "
              "passes/planning/plan_schedule.h.")
      .def_ro("all_hidden_seconds", &PlanTable::all_hidden_seconds)
      .def_prop_ro("peak_bytes", [](const PlanTable& p) { return p.peak.bytes; })
      .def_prop_ro("peak_point", [](const PlanTable& p) { return p.peak.point; })
      .def_prop_ro(
          "peak_values", [](const PlanTable& p) -> const auto& { return p.peak.live; },
          "(value, bytes), largest first.")
      .def_ro("limited_bytes", &PlanTable::limited_bytes,
              "What a search held to its limit of memory: of a device, or of a stage.")
      .def_ro("mem_coeff", &PlanTable::mem_coeff)
      .def_ro("lower_bound_seconds", &PlanTable::lower_bound_seconds)
      .def_ro("bound_is_joint", &PlanTable::bound_is_joint)
      .def_ro("op_classes", &PlanTable::op_classes)
      .def_ro("rounds", &PlanTable::rounds)
      .def_ro("phases", &PlanTable::phases, "(name, seconds) of the search.")
      .def_ro("op_seconds", &PlanTable::op_seconds)
      .def_ro("op_flops", &PlanTable::op_flops)
      .def_ro("op_bytes", &PlanTable::op_bytes)
      .def_ro("op_packed_bytes", &PlanTable::op_packed_bytes)
      .def_ro("live_bytes", &PlanTable::live_bytes)
      .def_ro("transient_bytes", &PlanTable::transient_bytes);

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

  static nb::exception<planning::GivenUp> given_up(module, "GivenUp");
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const planning::GivenUp& g) {
      nb::object args = nb::make_tuple(std::string(g.what()), g.seconds);
      PyErr_SetObject(given_up.ptr(), args.ptr());
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
        return planning::table_of(program, plan);
      },
      "program"_a, nb::kw_only(), "max_options"_a = 160, "sweeps"_a = 2, "seed"_a = 0,
      "The plan of least resharding; raises Contradiction(message, op, value).");

  module.def(
      "recursive_programming",
      [](const Program& program, const Cluster& cluster, std::optional<double> mem_coeff,
         double memory_limit, int sweeps, bool joint, bool fold, bool merge_axes,
         bool all_prices, double most_seconds, double time_limit, std::uint64_t seed,
         int stages, double give_up_seconds, const Show& show) {
        planning::RecursiveOptions options;
        options.watcher = watcher_of(show ? nb::handle(*show) : nb::handle());
        options.mem_coeff = mem_coeff;
        options.memory_limit = memory_limit;
        options.sweeps = sweeps;
        options.joint = joint;
        options.fold = fold;
        options.merge_axes = merge_axes;
        options.all_prices = all_prices;
        options.stages = stages;
        options.give_up_seconds = give_up_seconds;
        options.most_seconds = most_seconds;
        options.time_limit = time_limit;
        options.seed = seed;
        const nb::gil_scoped_release release;
        return planning::table_of(program,
                                  planning::recursive_programming(program, cluster, options));
      },
      "program"_a, "cluster"_a, nb::kw_only(), "mem_coeff"_a.none(), "memory_limit"_a,
      "sweeps"_a = 2, "joint"_a = true, "fold"_a = true, "merge_axes"_a = true,
      "all_prices"_a = false, "most_seconds"_a = std::numeric_limits<double>::infinity(),
      "time_limit"_a = std::numeric_limits<double>::infinity(), "seed"_a = 0, "stages"_a = 1,
      "give_up_seconds"_a = std::numeric_limits<double>::infinity(), "show"_a = nb::none(),
      "The plan of least step time that fits; raises Contradiction(message, op, value) or "
      "DoesNotFit(message, peak bytes, limit, [(value, bytes)]), or GivenUp(message, seconds) "
      "of a first plan that takes longer than `give_up_seconds`. `show` is called some times "
      "a "
      "second with phase, number of plans, seconds of the fastest that fits, its mesh, "
      "and whether Ctrl-C was pressed; where it returns false, the search ends with the best "
      "plan so far. What it raises, or another handler of a signal, the search raises.");

  module.def(
      "estimate",
      [](const Program& program, const Cluster& cluster,
         std::vector<planning::AxisNumbers> shardings,
         std::vector<std::int32_t> value_sharding,
         std::vector<planning::StrategyRow> strategies, std::vector<std::int32_t> op_strategy,
         const PlanTable* known) {
        const CutTable cuts{std::move(shardings), std::move(value_sharding),
                            std::move(strategies), std::move(op_strategy)};
        return planning::estimate_table(program, cluster, cuts,
                                        known ? known->memory : nullptr);
      },
      "program"_a, "cluster"_a, nb::kw_only(), "shardings"_a, "value_sharding"_a,
      "strategies"_a, "op_strategy"_a, "known"_a.none() = nb::none(),
      "What a given plan costs, by the numbers of `CorePlan`: a table of shardings, the "
      "sharding "
      "of each value, a table of strategies, the strategy of each op. `known`: another plan "
      "of the program for the same compiler.");

  nb::class_<AlikeOps>(module, "AlikeOps", "Groups of ops that are alike.")
      .def_prop_ro(
          "group_of", [](const AlikeOps& a) { return to_array(a.group_of); },
          nb::rv_policy::automatic, "For each op the number of its group.")
      .def_ro("first", &AlikeOps::first, "For each group its first op.")
      .def_ro("count", &AlikeOps::count, "How many ops it has.")
      .def_ro("occurrence", &AlikeOps::occurrence,
              "How many ops before its first one stand in the same spot.");

  module.def(
      "alike_ops",
      [](const Program& program, const PlanTable& plan, const Column<std::int32_t>& kinds,
         const Column<std::int32_t>& places, const Column<std::int32_t>& spots) {
        const auto span = [](const auto& column) {
          return std::span<const std::int32_t>(column.data(), column.size());
        };
        return planning::alike_ops(program, plan, {span(kinds), span(places), span(spots)});
      },
      "program"_a, "plan"_a, nb::kw_only(), "kinds"_a, "places"_a, "spots"_a,
      "Groups of ops with one kind, place, strategy, seconds and runs, in the order of their "
      "first ops. Spots are small numbers from 0 on.");

  const auto replans = [&module](const char* name, const auto& replan, const char* doc) {
    module.def(
        name,
        [replan](const Program& program, const Cluster& cluster, const PlanTable& previous,
                 std::optional<double> mem_coeff, double memory_limit,
                 std::optional<double> price, int sweeps, double time_limit,
                 std::uint64_t seed, int stages) {
          planning::RecursiveOptions options;
          options.watcher = watcher_of({});
          options.mem_coeff = mem_coeff;
          options.memory_limit = memory_limit;
          options.sweeps = sweeps;
          options.time_limit = time_limit;
          options.seed = seed;
          options.stages = stages;
          return replan(program, cluster, previous, price, options);
        },
        "program"_a, "cluster"_a, "previous"_a, nb::kw_only(), "mem_coeff"_a.none(),
        "memory_limit"_a, "price"_a = nb::none(), "sweeps"_a = 2,
        "time_limit"_a = std::numeric_limits<double>::infinity(), "seed"_a = 0, "stages"_a = 1,
        nb::call_guard<nb::gil_scoped_release>(), doc);
  };
  replans("replan", planning::replan_table,
          "A plan of the same program, on the mesh of `previous`, with other pins. Memory has "
          "`price` at first, in the unit of mem_coeff, else that of `previous`.");
  replans(
      "replan_near", planning::replan_near_table,
      "As `replan`, without the whole search where the previous plan leads nowhere: None.");

  module.def(
      "recursive_programming_network",
      [](const Program& program, const Cluster& cluster) {
        return planning::joint_network(program, cluster);
      },
      "program"_a, "cluster"_a,
      "The cost network in seconds of all mesh axes together, for other solvers and for "
      "tests.");

  module.def(
      "symbolic_programming",
      [](const Program& program, double mem_coeff, std::int64_t max_options, int sweeps,
         std::uint64_t seed) {
        planning::SymbolicOptions options{mem_coeff, max_options, sweeps, seed};
        planning::SymbolicPlan found = planning::symbolic_programming(program, options);
        return std::make_pair(planning::table_of(program, found.plan),
                              std::move(found.choices));
      },
      "program"_a, "mem_coeff"_a, nb::kw_only(), "max_options"_a = 160, "sweeps"_a = 2,
      "seed"_a = 0,
      "The plan of least symbolic cost, and what each matmul could choose at each level; "
      "raises Contradiction(message, op, value).");

  module.def(
      "propagation_network",
      [](const Program& program, std::int64_t max_options) {
        return planning::first_network(program, {max_options});
      },
      "program"_a, nb::kw_only(), "max_options"_a = 160,
      "The cost network of all mesh axes, or of the first one, for other solvers and for "
      "tests.");
}

}  // namespace autoshard
