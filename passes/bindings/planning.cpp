#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>

#include "bindings/bindings.h"
#include "planning/propagation.h"

namespace nb = nanobind;

namespace autoshard {
namespace {

using Ints = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Flags = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Dims = std::vector<std::vector<std::int32_t>>;
/// (type, factors of each dim)
using TensorTuple = std::tuple<std::int32_t, Dims>;
/// (size, kind, halo) of each factor, operands, results
using RuleTuple = std::tuple<std::vector<std::tuple<std::int64_t, int, std::int64_t>>,
                             std::vector<TensorTuple>, std::vector<TensorTuple>>;
/// (value, (axes, is_open, num_shards) of each dim, axes that cut no dim)
using PinTuple = std::tuple<
    std::int32_t,
    std::vector<std::tuple<std::vector<std::int32_t>, bool, std::optional<std::int64_t>>>,
    std::vector<std::int32_t>>;

std::vector<RuleTensor> rule_tensors(const std::vector<TensorTuple>& tuples) {
  std::vector<RuleTensor> tensors;
  for (const auto& [type, dims] : tuples) tensors.push_back({type, dims});
  return tensors;
}

Program make_program(
    const std::vector<std::int64_t>& axis_sizes,
    const std::vector<std::pair<std::vector<std::int64_t>, std::int64_t>>& types,
    const std::vector<RuleTuple>& rules, Ints value_type, Flags value_is_free, Ints op_rule,
    Doubles op_trips, Ints operand_offset, Ints operands, Flags operand_kept,
    Ints result_offset, Ints results, Ints join_source, Ints join_target, Doubles join_trips,
    const std::vector<PinTuple>& pins) {
  Program program;
  program.mesh.axis_sizes = axis_sizes;
  for (const auto& [dims, bits] : types) program.types.push_back({dims, bits});
  for (const auto& [factors, operand_tensors, result_tensors] : rules) {
    Rule rule;
    for (const auto& [size, kind, halo] : factors) {
      if (kind < 0 || kind > 3) throw InvalidProgram("unknown factor kind");
      rule.factors.push_back({size, static_cast<FactorKind>(kind), halo});
    }
    rule.operands = rule_tensors(operand_tensors);
    rule.results = rule_tensors(result_tensors);
    program.rules.push_back(std::move(rule));
  }
  if (value_type.size() != value_is_free.size() ||
      operand_offset.size() != op_rule.size() + 1 ||
      result_offset.size() != op_rule.size() + 1 || op_trips.size() != op_rule.size() ||
      operands.size() != operand_kept.size() || join_source.size() != join_target.size() ||
      join_source.size() != join_trips.size()) {
    throw InvalidProgram("arrays differ in length");
  }
  for (std::size_t v = 0; v < value_type.size(); ++v) {
    program.values.push_back({value_type(v), value_is_free(v) != 0});
  }
  program.ops.reserve(op_rule.size());
  for (std::size_t i = 0; i < op_rule.size(); ++i) {
    Op op;
    op.rule = op_rule(i);
    op.trips = op_trips(i);
    for (std::int32_t k = operand_offset(i); k < operand_offset(i + 1); ++k) {
      op.operands.push_back(operands(k));
      op.kept_operands.push_back(operand_kept(k) != 0);
    }
    for (std::int32_t k = result_offset(i); k < result_offset(i + 1); ++k) {
      op.results.push_back(results(k));
    }
    program.ops.push_back(std::move(op));
  }
  for (std::size_t j = 0; j < join_source.size(); ++j) {
    program.joins.push_back({join_source(j), join_target(j), join_trips(j)});
  }
  for (const auto& [value, dims, replicated] : pins) {
    Pin pin{value, {}, {replicated.begin(), replicated.end()}};
    for (const auto& [axes, is_open, num_shards] : dims) {
      DimPin dim{{}, is_open, num_shards};
      for (std::int32_t axis : axes) dim.axes.push_back(static_cast<AxisIndex>(axis));
      pin.dims.push_back(std::move(dim));
    }
    program.pins.push_back(std::move(pin));
  }
  check(program);
  return program;
}

/// Distinct shardings in the order in which they were first seen.
class ShardingTable {
 public:
  std::int32_t index(const Sharding& sharding) {
    auto [entry, is_new] =
        indices_.try_emplace(key(sharding) + "/" + std::to_string(sharding.dims.size()),
                             static_cast<std::int32_t>(list.size()));
    if (is_new) {
      std::vector<std::vector<std::int32_t>> dims;
      for (const AxisList& axes : sharding.dims) dims.emplace_back(axes.begin(), axes.end());
      list.push_back(std::move(dims));
    }
    return entry->second;
  }
  std::vector<std::vector<std::vector<std::int32_t>>> list;

 private:
  std::map<std::string, std::int32_t> indices_;
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
  double redistributed_bytes, objective, lower_bound, build_seconds, solve_seconds;
  int levels;
  std::int64_t network_nodes, network_edges;
};

PlanView view(const Program& program, const planning::Plan& plan) {
  PlanView result;
  ShardingTable table;
  for (const Sharding& s : plan.values) result.value_sharding.push_back(table.index(s));
  std::map<std::vector<std::int32_t>, std::int32_t> strategies;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    const Rule& rule = program.rules[op.rule];
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
  result.build_seconds = plan.build_seconds;
  result.solve_seconds = plan.solve_seconds;
  result.levels = plan.levels;
  result.network_nodes = plan.network_nodes;
  result.network_edges = plan.network_edges;
  return result;
}

}  // namespace

void bind_planning(nb::module_& module) {
  nb::class_<Program>(module, "Program",
                      "A module as the core sees it; see passes/model/program.h.")
      .def(
          "__init__",
          [](Program* self, const std::vector<std::int64_t>& axis_sizes,
             const std::vector<std::pair<std::vector<std::int64_t>, std::int64_t>>& types,
             const std::vector<RuleTuple>& rules, Ints value_type, Flags value_is_free,
             Ints op_rule, Doubles op_trips, Ints operand_offset, Ints operands,
             Flags operand_kept, Ints result_offset, Ints results, Ints join_source,
             Ints join_target, Doubles join_trips, const std::vector<PinTuple>& pins) {
            new (self) Program(make_program(axis_sizes, types, rules, value_type,
                                            value_is_free, op_rule, op_trips, operand_offset,
                                            operands, operand_kept, result_offset, results,
                                            join_source, join_target, join_trips, pins));
          },
          nb::kw_only(), nb::arg("axis_sizes"), nb::arg("types"), nb::arg("rules"),
          nb::arg("value_type"), nb::arg("value_is_free"), nb::arg("op_rule"),
          nb::arg("op_trips"), nb::arg("operand_offset"), nb::arg("operands"),
          nb::arg("operand_kept"), nb::arg("result_offset"), nb::arg("results"),
          nb::arg("join_source"), nb::arg("join_target"), nb::arg("join_trips"),
          nb::arg("pins"))
      .def_prop_ro("num_values", [](const Program& p) { return p.values.size(); })
      .def_prop_ro("num_ops", [](const Program& p) { return p.ops.size(); });

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
      .def_ro("build_seconds", &PlanView::build_seconds)
      .def_ro("solve_seconds", &PlanView::solve_seconds)
      .def_ro("levels", &PlanView::levels)
      .def_ro("network_nodes", &PlanView::network_nodes)
      .def_ro("network_edges", &PlanView::network_edges);

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
      "propagation_network",
      [](const Program& program, std::int64_t max_options) {
        return planning::first_network(program, {max_options});
      },
      nb::arg("program"), nb::kw_only(), nb::arg("max_options") = 160,
      "The cost network of all mesh axes, or of the first one, for other solvers and for "
      "tests.");

  module.def(
      "redistribution",
      [](const std::vector<std::int64_t>& shape, std::int64_t element_bits,
         const std::vector<std::vector<std::int32_t>>& from,
         const std::vector<std::vector<std::int32_t>>& to, std::uint32_t partial,
         const std::vector<std::int64_t>& axis_sizes, bool may_scatter) {
        const auto sharding = [](const auto& dims) {
          Sharding s;
          for (const auto& axes : dims) s.dims.emplace_back(axes.begin(), axes.end());
          return s;
        };
        const Redistribution r =
            redistribution({shape, element_bits}, sharding(from), sharding(to), partial,
                           Mesh{axis_sizes}, may_scatter);
        return std::make_pair(r.bytes, r.collectives);
      },
      nb::arg("shape"), nb::arg("element_bits"), nb::arg("from_dims"), nb::arg("to_dims"),
      nb::arg("partial_axes"), nb::arg("axis_sizes"), nb::arg("may_scatter") = true,
      "(bytes a device sends, collectives) to go from one sharding to another.");
}

}  // namespace autoshard
