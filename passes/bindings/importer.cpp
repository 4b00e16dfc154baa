#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "importer/builder.h"
#include "importer/unread.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace autoshard {
namespace {

using importer::Describe;
using importer::OpClass;
using importer::OpStructure;
using importer::ProgramBuilder;
using importer::ReadModule;
using importer::RoundedOperand;
using importer::Rounding;
using importer::UnreadCast;
using Ints = std::vector<std::int32_t>;
/// What is asked of an op that stands for its class, and of one with types of its own.
using AskClass = nb::typed<nb::callable, OpClass(std::int32_t)>;
using AskRule = nb::typed<nb::callable, std::int32_t(std::int32_t, Ints, Ints)>;
/// Type and rule of the cast, as in `Rounding`.
using AskRounding =
    nb::typed<nb::callable, std::pair<std::int32_t, std::int32_t>(std::int32_t)>;

/// The first block of a region, with all its arguments.
struct RegionBlock {
  std::int32_t first_op, last_op;
  Ints arguments;
};

Describe describe_with(const AskClass& op_class, const AskRule& rule,
                       const AskRounding& rounding) {
  return {[op_class](std::int32_t op) { return nb::cast<OpClass>(op_class(op)); },
          [rule](std::int32_t op, const Ints& operand_types, const Ints& result_types) {
            return nb::cast<std::int32_t>(rule(op, operand_types, result_types));
          },
          [rounding](std::int32_t type) {
            const auto [to, cast] =
                nb::cast<std::pair<std::int32_t, std::int32_t>>(rounding(type));
            return Rounding{to, cast};
          }};
}

Ints numbers_from(std::int32_t first, std::int32_t count) {
  Ints numbers;
  for (std::int32_t k = 0; k < count; ++k) numbers.push_back(first + k);
  return numbers;
}

}  // namespace

void bind_importer(nb::module_& module) {
  nb::class_<OpClass>(module, "OpClass", "What all ops of one class have in common.")
      .def(nb::init<bool, std::int32_t, bool, bool, bool, bool, bool, bool, bool, Ints>(),
           nb::kw_only(), "is_special"_a, "num_placed"_a, "is_free"_a, "is_broadcast"_a,
           "only_moves"_a, "is_cast"_a, "is_zero"_a, "is_update"_a, "is_sum"_a,
           "result_types"_a);

  nb::class_<RegionBlock>(module, "RegionBlock", "The first block of a region.")
      .def_ro("first_op", &RegionBlock::first_op)
      .def_ro("last_op", &RegionBlock::last_op)
      .def_ro("arguments", &RegionBlock::arguments);

  nb::class_<ProgramBuilder::Mark>(module, "BuilderMark", "How far a program got.")
      .def_ro("op", &ProgramBuilder::Mark::op)
      .def_ro("join", &ProgramBuilder::Mark::join);

  nb::class_<RoundedOperand>(module, "RoundedOperand",
                             "A cast that is an op of the program alone.")
      .def_ro("op", &RoundedOperand::op)
      .def_ro("source", &RoundedOperand::source)
      .def_ro("result", &RoundedOperand::result)
      .def_ro("position", &RoundedOperand::position);

  nb::class_<UnreadCast>(module, "UnreadCast",
                         "An operand that the program reads as it was before a cast of the "
                         "module, which nothing else reads.")
      .def_ro("cast", &UnreadCast::cast)
      .def_ro("reader", &UnreadCast::reader)
      .def_ro("result", &UnreadCast::result)
      .def_ro("position", &UnreadCast::position);

  nb::class_<ReadModule>(module, "ReadModule", "A module by numbers, as it was read.")
      .def(
          "classes",
          [](const ReadModule& read) {
            Ints first(read.structure.num_classes, -1);
            for (std::size_t op = read.structure.ops.size(); op-- > 0;) {
              first[read.structure.ops[op].op_class] = static_cast<std::int32_t>(op);
            }
            return first;
          },
          "The first op of each class.")
      .def(
          "class_of",
          [](const ReadModule& read, std::int32_t op) {
            return read.structure.ops.at(op).op_class;
          },
          "op"_a);

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
            std::vector<RegionBlock> blocks;
            for (std::int32_t k = 0; k < read.num_regions; ++k) {
              const importer::Block& block = b.module().regions[read.first_region + k];
              blocks.push_back({block.first_op, block.last_op,
                                numbers_from(block.first_argument, block.num_arguments)});
            }
            return blocks;
          },
          "First block of each region.")
      .def("new_value", &ProgramBuilder::new_value, nb::arg("type"),
           nb::arg("is_free") = false)
      .def_prop_ro("num_values", &ProgramBuilder::num_values)
      .def_prop_ro("num_ops", &ProgramBuilder::num_ops)
      .def_prop_ro("last_added", &ProgramBuilder::last_added,
                   "The op that the last one of the module is that was added; -1: none.")
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
      .def("set_read", &ProgramBuilder::set_read, nb::arg("value"),
           "An op that is none of the program reads a value.")
      .def(
          "add_plain",
          [](ProgramBuilder& b, std::int32_t op, std::int32_t end, double trips,
             const AskClass& op_class, const AskRule& rule, const AskRounding& rounding) {
            return b.add_plain(op, end, trips, describe_with(op_class, rule, rounding));
          },
          nb::arg("op"), nb::arg("end"), nb::arg("trips"), nb::arg("op_class"),
          nb::arg("rule"), nb::arg("rounding"),
          "Read ops up to the first special one, or to `end`; where it stopped.")
      .def(
          "add",
          [](ProgramBuilder& b, std::int32_t op, double trips, const AskClass& op_class,
             const AskRule& rule, const AskRounding& rounding,
             const std::optional<Ints>& result_types) {
            b.add(op, trips, describe_with(op_class, rule, rounding),
                  result_types ? &*result_types : nullptr);
          },
          nb::arg("op"), nb::arg("trips"), nb::arg("op_class"), nb::arg("rule"),
          nb::arg("rounding"), nb::arg("result_types") = nb::none(),
          "Read one op as if it were plain.")
      .def("alias",
           [](ProgramBuilder& b, std::int32_t op, const Ints& values) { b.alias(op, values); })
      .def("operands_of", &ProgramBuilder::operands_of, nb::arg("program_op"),
           "Values that an op of the program reads.")
      .def("set_operands", &ProgramBuilder::set_operands)
      .def_prop_ro("first_ops", &ProgramBuilder::first_ops, "The first op of each class.")
      .def("round_operands_of",
           [](ProgramBuilder& b, const Ints& classes) { b.round_operands_of(classes); })
      .def_prop_ro("num_rounded", &ProgramBuilder::num_rounded)
      .def("forget_rounded", &ProgramBuilder::forget_rounded, nb::arg("since"))
      .def_prop_ro("rounded_operands", &ProgramBuilder::rounded_operands)
      .def_prop_ro("unread_casts", &ProgramBuilder::unread_casts)
      .def("join", &ProgramBuilder::join)
      .def("mark", &ProgramBuilder::mark)
      .def("scale_trips", &ProgramBuilder::scale_trips)
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
          "op_classes",
          [](const ProgramBuilder& b) {
            Ints classes;
            for (const std::int32_t op : b.read_ops()) {
              classes.push_back(b.module().ops[op].op_class);
            }
            return to_array(std::move(classes));
          },
          nb::rv_policy::automatic,
          "The class of each op that was read; ops of one differ in operands, regions and "
          "locations only.")
      .def_prop_ro(
          "result_classes",
          [](const ProgramBuilder& b) {
            Ints classes;
            for (const std::int32_t op : b.ops_with_results()) {
              classes.push_back(b.module().ops[op].op_class);
            }
            return classes;
          },
          "The same of each of `result_values`.")
      .def_prop_ro(
          "op_locations", [](const ProgramBuilder& b) { return to_array(b.locations()); },
          nb::rv_policy::automatic,
          "A number for each op that was read, equal for equal locations.")
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
             std::vector<TensorType> types, std::vector<Rule> rules, std::vector<Pin> pins,
             std::vector<Loop> loops, std::vector<Argument> arguments, Ints results,
             Ints early, Ints any_order, bool all_to_all) {
            Program program = b.take();
            program.mesh = {axis_sizes, all_to_all};
            program.types = std::move(types);
            program.rules = std::move(rules);
            program.pins = std::move(pins);
            program.loops = std::move(loops);
            program.arguments = std::move(arguments);
            program.results = std::move(results);
            program.early = std::move(early);
            program.any_order = std::move(any_order);
            check(program);
            importer::leave_out_unread(program, b.makes_scalars(), b.read_elsewhere());
            return program;
          },
          nb::kw_only(), "axis_sizes"_a, "types"_a, "rules"_a, "pins"_a, "loops"_a,
          "arguments"_a, "results"_a, "early"_a, "any_order"_a, "all_to_all"_a,
          "The program; nothing can be added any more.")
      .def("take_module", &ProgramBuilder::take_module,
           "The module as it was read; nothing can be asked any more.");
}

}  // namespace autoshard
