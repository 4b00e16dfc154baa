#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings/bindings.h"
#include "bindings/program_tuples.h"
#include "importer/builder.h"

namespace nb = nanobind;

namespace autoshard {
namespace {

using importer::Block;
using importer::Describe;
using importer::OpClass;
using importer::OpStructure;
using importer::ProgramBuilder;
using Ints = std::vector<std::int32_t>;
/// (is_special, is_free, is_broadcast, only_moves, types of the results)
using ClassTuple = std::tuple<bool, bool, bool, bool, Ints>;
/// `OpClass` of an op; the rule of an op by the types of its operands and results.
using AskClass = nb::typed<nb::callable, ClassTuple(std::int32_t)>;
using AskRule = nb::typed<nb::callable, std::int32_t(std::int32_t, Ints, Ints)>;
/// (first op, last op, arguments)
using BlockTuple = std::tuple<std::int32_t, std::int32_t, Ints>;

Describe describe_with(const AskClass& op_class, const AskRule& rule) {
  return {[op_class](std::int32_t op) {
            auto [is_special, is_free, is_broadcast, only_moves, result_types] =
                nb::cast<ClassTuple>(op_class(op));
            return OpClass{is_special, is_free, is_broadcast, only_moves,
                           std::move(result_types)};
          },
          [rule](std::int32_t op, const Ints& operand_types, const Ints& result_types) {
            return nb::cast<std::int32_t>(rule(op, operand_types, result_types));
          }};
}

Ints numbers_from(std::int32_t first, std::int32_t count) {
  Ints numbers;
  for (std::int32_t k = 0; k < count; ++k) numbers.push_back(first + k);
  return numbers;
}

}  // namespace

void bind_importer(nb::module_& module) {
  nb::class_<ProgramBuilder>(module, "ProgramBuilder",
                             "Fills a program op after op; see passes/importer/builder.h.")
      .def(
          "__init__",
          [](ProgramBuilder* self, const nb::bytes& bytecode) {
            new (self)
                ProgramBuilder(importer::read_bytecode({bytecode.c_str(), bytecode.size()}));
          },
          nb::arg("bytecode"))
      .def_prop_ro("num_module_ops",
                   [](const ProgramBuilder& b) { return b.module().ops.size(); })
      .def("class_of", [](const ProgramBuilder& b,
                          std::int32_t op) { return b.module().ops.at(op).op_class; })
      .def("end",
           [](const ProgramBuilder& b, std::int32_t op) { return b.module().ops.at(op).end; })
      .def(
          "operands",
          [](const ProgramBuilder& b, std::int32_t op) {
            const OpStructure& read = b.module().ops.at(op);
            const auto first = b.module().operands.begin() + read.first_operand;
            return Ints(first, first + read.num_operands);
          },
          "Values of the module that an op reads.")
      .def(
          "results",
          [](const ProgramBuilder& b, std::int32_t op) {
            const OpStructure& read = b.module().ops.at(op);
            return numbers_from(read.first_result, read.num_results);
          },
          "Values of the module that an op makes.")
      .def(
          "blocks",
          [](const ProgramBuilder& b, std::int32_t op) {
            const OpStructure& read = b.module().ops.at(op);
            std::vector<BlockTuple> blocks;
            for (std::int32_t k = 0; k < read.num_regions; ++k) {
              const Block& block = b.module().regions[read.first_region + k];
              blocks.emplace_back(block.first_op, block.last_op,
                                  numbers_from(block.first_argument, block.num_arguments));
            }
            return blocks;
          },
          "(first op, last op, arguments) of the first block of each region.")
      .def("new_value", &ProgramBuilder::new_value, nb::arg("type"),
           nb::arg("is_free") = false)
      .def_prop_ro("num_values", &ProgramBuilder::num_values)
      .def_prop_ro("num_ops", &ProgramBuilder::num_ops)
      .def("type_of",
           [](const ProgramBuilder& b, std::int32_t value) { return b.value(value).type; })
      .def("is_free",
           [](const ProgramBuilder& b, std::int32_t value) { return b.value(value).is_free; })
      .def("values_of",
           [](const ProgramBuilder& b, const Ints& of) {
             Ints values;
             for (const std::int32_t ssa : of) values.push_back(b.value_of(ssa));
             return values;
           })
      .def("bind",
           [](ProgramBuilder& b, const Ints& of, const Ints& values) {
             if (of.size() != values.size()) throw InvalidProgram("bound to too few values");
             for (std::size_t k = 0; k < of.size(); ++k) b.bind(of[k], values[k]);
           })
      .def("set_on_host", &ProgramBuilder::set_on_host)
      .def("set_marked", &ProgramBuilder::set_marked)
      .def(
          "add_plain",
          [](ProgramBuilder& b, std::int32_t op, std::int32_t end, double trips,
             const AskClass& op_class, const AskRule& rule) {
            return b.add_plain(op, end, trips, describe_with(op_class, rule));
          },
          nb::arg("op"), nb::arg("end"), nb::arg("trips"), nb::arg("op_class"),
          nb::arg("rule"),
          "Read ops up to the first special one, or to `end`; where it stopped.")
      .def(
          "add",
          [](ProgramBuilder& b, std::int32_t op, double trips, const AskClass& op_class,
             const AskRule& rule, const std::optional<Ints>& result_types) {
            b.add(op, trips, describe_with(op_class, rule),
                  result_types ? &*result_types : nullptr);
          },
          nb::arg("op"), nb::arg("trips"), nb::arg("op_class"), nb::arg("rule"),
          nb::arg("result_types") = nb::none(), "Read one op as if it were plain.")
      .def("alias",
           [](ProgramBuilder& b, std::int32_t op, const Ints& values) { b.alias(op, values); })
      .def("set_operands", &ProgramBuilder::set_operands)
      .def("join", &ProgramBuilder::join)
      .def("mark",
           [](const ProgramBuilder& b) {
             const ProgramBuilder::Mark mark = b.mark();
             return std::pair(mark.op, mark.join);
           })
      .def("scale_trips",
           [](ProgramBuilder& b, const std::pair<std::int32_t, std::int32_t>& mark,
              double factor) { b.scale_trips({mark.first, mark.second}, factor); })
      .def_rw("host_depth", &ProgramBuilder::host_depth)
      .def_rw("has_barriers", &ProgramBuilder::has_barriers)
      .def("wait_for", [](ProgramBuilder& b, const Ints& of) { return b.wait_for(of); })
      .def("set_after",
           [](ProgramBuilder& b, const Ints& of, std::int32_t op) {
             for (const std::int32_t ssa : of) b.set_after(ssa, op);
           })
      .def("pass_after",
           [](ProgramBuilder& b, const Ints& sources, const Ints& targets) {
             if (sources.size() != targets.size()) throw InvalidProgram("passed to too few");
             for (std::size_t k = 0; k < sources.size(); ++k) {
               b.set_after(targets[k], b.after(sources[k]));
             }
           })
      .def("set_makers",
           [](ProgramBuilder& b, const Ints& values, std::int32_t op) {
             for (const std::int32_t value : values) {
               if (value != no_value) b.set_maker(value, op);
             }
           })
      .def_prop_ro("read_ops", &ProgramBuilder::read_ops)
      .def_prop_ro(
          "result_values",
          [](const ProgramBuilder& b) {
            std::vector<std::pair<std::int32_t, Ints>> found;
            for (const std::int32_t op : b.ops_with_results()) {
              const OpStructure& read = b.module().ops[op];
              Ints values;
              for (std::int32_t k = 0; k < read.num_results; ++k) {
                values.push_back(b.value_of(read.first_result + k));
              }
              found.emplace_back(op, std::move(values));
            }
            return found;
          },
          "Every op with results, in order, and the program's value of each.")
      .def_prop_ro("op_rules",
                   [](const ProgramBuilder& b) {
                     Ints rules;
                     for (const Op& op : b.ops()) rules.push_back(op.rule);
                     return rules;
                   })
      .def_prop_ro("types",
                   [](const ProgramBuilder& b) {
                     Ints types;
                     for (std::int32_t v = 0; v < b.num_values(); ++v) {
                       types.push_back(b.value(v).type);
                     }
                     return types;
                   })
      .def_prop_ro("are_free",
                   [](const ProgramBuilder& b) {
                     std::vector<bool> are_free;
                     for (std::int32_t v = 0; v < b.num_values(); ++v) {
                       are_free.push_back(b.value(v).is_free);
                     }
                     return are_free;
                   })
      .def(
          "program",
          [](ProgramBuilder& b, const std::vector<std::int64_t>& axis_sizes,
             const std::vector<TypeTuple>& types, const std::vector<RuleTuple>& rules,
             const std::vector<WorkTuple>& works, const std::vector<PinTuple>& pins,
             const std::vector<LoopTuple>& loops, const std::vector<ArgumentTuple>& arguments,
             const Ints& results, const Ints& early, bool all_to_all) {
            Program program = b.take();
            set_tables(program, axis_sizes, types, rules, works, all_to_all);
            set_edges(program, pins, loops, arguments, results, early);
            check(program);
            return program;
          },
          nb::kw_only(), nb::arg("axis_sizes"), nb::arg("types"), nb::arg("rules"),
          nb::arg("works"), nb::arg("pins"), nb::arg("loops"), nb::arg("arguments"),
          nb::arg("results"), nb::arg("early"), nb::arg("all_to_all"),
          "The program; nothing can be added any more.");
}

}  // namespace autoshard
