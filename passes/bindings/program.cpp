#include "model/program.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "bindings/program_tuples.h"

namespace nb = nanobind;

namespace autoshard {
namespace {

using Ints = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Flags = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
Program make_program(
    const std::vector<std::int64_t>& axis_sizes,
    const std::vector<std::pair<std::vector<std::int64_t>, std::int64_t>>& types,
    const std::vector<RuleTuple>& rules, Ints value_type, Flags value_is_free, Ints op_rule,
    Doubles op_trips, Ints operand_offset, Ints operands, Flags operand_kept,
    Ints result_offset, Ints results, Ints join_source, Ints join_target, Doubles join_trips,
    const std::vector<PinTuple>& pins, const std::vector<WorkTuple>& works,
    const std::optional<Ints>& op_after, const std::optional<Ints>& op_until,
    const std::vector<LoopTuple>& loops, const std::vector<ArgumentTuple>& arguments,
    const std::vector<std::int32_t>& program_results, const std::vector<std::int32_t>& early,
    bool all_to_all) {
  Program program;
  set_tables(program, axis_sizes, types, rules, works, all_to_all);
  if (value_type.size() != value_is_free.size() ||
      operand_offset.size() != op_rule.size() + 1 ||
      result_offset.size() != op_rule.size() + 1 || op_trips.size() != op_rule.size() ||
      operands.size() != operand_kept.size() || join_source.size() != join_target.size() ||
      join_source.size() != join_trips.size() ||
      (op_after && op_after->size() != op_rule.size()) ||
      (op_until && op_until->size() != op_rule.size())) {
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
    if (op_after) op.after = (*op_after)(i);
    if (op_until) op.until = (*op_until)(i);
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
  set_edges(program, pins, loops, arguments, program_results, early);
  check(program);
  return program;
}

}  // namespace

void bind_program(nb::module_& module) {
  nb::class_<Program>(module, "Program",
                      "A module as the core sees it; see passes/model/program.h.")
      .def(
          "__init__",
          [](Program* self, const std::vector<std::int64_t>& axis_sizes,
             const std::vector<std::pair<std::vector<std::int64_t>, std::int64_t>>& types,
             const std::vector<RuleTuple>& rules, Ints value_type, Flags value_is_free,
             Ints op_rule, Doubles op_trips, Ints operand_offset, Ints operands,
             Flags operand_kept, Ints result_offset, Ints results, Ints join_source,
             Ints join_target, Doubles join_trips, const std::vector<PinTuple>& pins,
             const std::vector<WorkTuple>& works, const std::optional<Ints>& op_after,
             const std::optional<Ints>& op_until, const std::vector<LoopTuple>& loops,
             const std::vector<ArgumentTuple>& arguments,
             const std::vector<std::int32_t>& program_results,
             const std::vector<std::int32_t>& early, bool all_to_all) {
            new (self) Program(make_program(
                axis_sizes, types, rules, value_type, value_is_free, op_rule, op_trips,
                operand_offset, operands, operand_kept, result_offset, results, join_source,
                join_target, join_trips, pins, works, op_after, op_until, loops, arguments,
                program_results, early, all_to_all));
          },
          nb::kw_only(), nb::arg("axis_sizes"), nb::arg("types"), nb::arg("rules"),
          nb::arg("value_type"), nb::arg("value_is_free"), nb::arg("op_rule"),
          nb::arg("op_trips"), nb::arg("operand_offset"), nb::arg("operands"),
          nb::arg("operand_kept"), nb::arg("result_offset"), nb::arg("results"),
          nb::arg("join_source"), nb::arg("join_target"), nb::arg("join_trips"),
          nb::arg("pins"), nb::arg("works") = std::vector<WorkTuple>{},
          nb::arg("op_after") = nb::none(), nb::arg("op_until") = nb::none(),
          nb::arg("loops") = std::vector<LoopTuple>{},
          nb::arg("arguments") = std::vector<ArgumentTuple>{},
          nb::arg("program_results") = std::vector<std::int32_t>{},
          nb::arg("early") = std::vector<std::int32_t>{}, nb::arg("all_to_all") = true)
      .def_prop_ro("num_values", [](const Program& p) { return p.values.size(); })
      .def_prop_ro("op_trips",
                   [](const Program& p) {
                     std::vector<double> trips;
                     for (const Op& op : p.ops) trips.push_back(op.trips);
                     return trips;
                   })
      .def(
          "changed",
          [](const Program& p, const std::vector<std::int64_t>& axis_sizes,
             const std::vector<PinTuple>& pins) {
            Program changed = p;
            changed.mesh.axis_sizes = axis_sizes;
            changed.pins = make_pins(pins);
            check(changed);
            return changed;
          },
          nb::kw_only(), nb::arg("axis_sizes"), nb::arg("pins"),
          "The same program on another mesh and with other pins.")
      .def_prop_ro("num_ops", [](const Program& p) { return p.ops.size(); })
      .def_prop_ro(
          "op_work",
          [](const Program& p) {
            std::vector<WorkTuple> works;
            for (const Op& op : p.ops) {
              const Rule& rule = p.rules[op.rule];
              works.emplace_back(
                  static_cast<int>(rule.work), static_cast<int>(rule.arithmetic), rule.flops,
                  rule.is_cheap, rule.has_workspace, rule.operand_bytes, rule.result_bytes,
                  rule.in_place_operand, rule.padded_bytes, static_cast<int>(rule.expense));
            }
            return works;
          },
          "(work, arithmetic, flops, is_cheap, has_workspace, operand bytes, result bytes, "
          "operand in place, padded bytes, expense) of every op.")
      .def_prop_ro(
          "loops",
          [](const Program& p) {
            std::vector<LoopTuple> loops;
            for (const Loop& l : p.loops) {
              loops.emplace_back(l.first_op, l.last_op, l.trips, l.carried, l.yielded);
            }
            return loops;
          },
          "(first op, end of its ops, trips, carried, yielded) of every loop.")
      .def_prop_ro(
          "arguments",
          [](const Program& p) {
            std::vector<ArgumentTuple> arguments;
            for (const Argument& a : p.arguments) {
              arguments.emplace_back(a.value, a.is_donated);
            }
            return arguments;
          },
          "(value, is_donated) of every argument.")
      .def_prop_ro("results", [](const Program& p) { return p.results; });
}

}  // namespace autoshard
