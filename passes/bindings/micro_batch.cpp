#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "bindings/bindings.h"
#include "importer/bytecode.h"
#include "micro_batch/times.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace autoshard {

using micro_batch::Batch;
using micro_batch::Linear;
using micro_batch::Made;
using micro_batch::Need;
using micro_batch::OpCut;
using micro_batch::OpKind;
using micro_batch::Refused;
using micro_batch::Slice;
using micro_batch::Times;
using micro_batch::Use;
using micro_batch::Where;
using micro_batch::Why;

namespace {

using Ints = std::vector<std::int32_t>;
using TensorFactors = std::vector<std::vector<std::vector<std::int32_t>>>;
/// What is asked of an op that stands for its class.
using AskCut = nb::typed<nb::callable, OpCut(std::int32_t)>;

void bind_words(nb::module_& module) {
  nb::enum_<Where>(module, "Where", "Where an op runs.")
      .value("BEFORE", Where::before)
      .value("LOOP", Where::loop)
      .value("AFTER", Where::after);

  nb::enum_<OpKind>(module, "CutKind", "How an op is cut into micro-batches.")
      .value("PLAIN", OpKind::plain, "By its factors.")
      .value("IDENTITY", OpKind::identity, "Result k is operand k.")
      .value("LOOP", OpKind::loop)
      .value("BRANCHES", OpKind::branches);

  nb::enum_<Linear>(module, "Linear", "In which operands an op is linear.")
      .value("NONE", Linear::none)
      .value("TOGETHER", Linear::together, "In all data operands at once, as an addition.")
      .value("EACH", Linear::each, "In every data operand by itself, as a product.");

  nb::enum_<Why>(module, "Why", nb::is_str(), "Why an op cannot be cut into micro-batches.")
      .str_value("MIXES", Why::mixes, "mixes", "It reads a sum that is not finished.")
      .str_value("EXAMPLES", Why::examples, "examples", "It combines examples.")
      .str_value("PART", Why::part, "part", "It needs the whole dim, or knows no rule.")
      .str_value("UNEVEN", Why::uneven, "uneven", "The parts are no part of one factor.")
      .str_value("NO_SUM", Why::no_sum, "no sum", "It reduces, but does not add.")
      .str_value("CARRIED", Why::carried, "carried", "A loop carries two kinds of it.");
}

void bind_records(nb::module_& module) {
  nb::class_<OpCut>(module, "OpCut",
                    "How all ops of one class are cut; see passes/micro_batch/times.h.")
      .def(
          "__init__",
          [](OpCut* self, OpKind kind, std::vector<Factor> factors, TensorFactors operands,
             TensorFactors results, bool adds, Linear linear, Ints data, std::int32_t added_to,
             bool is_early, bool is_heavy, bool is_zero, bool is_free) {
            new (self) OpCut{kind,
                             std::move(factors),
                             std::move(operands),
                             std::move(results),
                             adds,
                             linear,
                             std::move(data),
                             added_to,
                             is_early,
                             is_heavy,
                             is_zero,
                             is_free};
          },
          nb::kw_only(), "kind"_a = OpKind::plain, "factors"_a = std::vector<Factor>{},
          "operands"_a = TensorFactors{}, "results"_a = TensorFactors{}, "adds"_a = false,
          "linear"_a = Linear::none, "data"_a = Ints{}, "added_to"_a = -1,
          "is_early"_a = false, "is_heavy"_a = false, "is_zero"_a = false,
          "is_free"_a = false);

  nb::class_<Slice>(module, "SlicedValue", "A value that is a slice in the loop.")
      .def_ro("op", &Slice::op)
      .def_ro("region", &Slice::region, "Whose argument it is; -1: a result.")
      .def_ro("index", &Slice::index)
      .def_ro("dim", &Slice::dim)
      .def_ro("stride", &Slice::stride);

  nb::class_<Use>(module, "OperandUse", "An operand of an op, by numbers.")
      .def_ro("op", &Use::op)
      .def_ro("operand", &Use::operand);

  nb::class_<Made>(module, "MadeResult", "A result of an op, by numbers.")
      .def_ro("op", &Made::op)
      .def_ro("result", &Made::result);

  nb::class_<Need>(module, "NeededPart", "The part of an operand that a micro-batch reads.")
      .def_ro("op", &Need::op)
      .def_ro("operand", &Need::operand)
      .def_ro("dim", &Need::dim)
      .def_ro("stride", &Need::stride);
}

}  // namespace

void bind_micro_batch(nb::module_& module) {
  bind_words(module);
  bind_records(module);

  nb::class_<Times>(module, "MicroBatchTimes",
                    "When values are known; see passes/micro_batch/times.h.")
      .def_ro("slices", &Times::slices)
      .def_ro("where", &Times::where,
              "Where each op of `main` runs; it says nothing of others.")
      .def_ro("needs", &Times::needs)
      .def_ro("once", &Times::once)
      .def_ro("captured", &Times::captured)
      .def_ro("counting", &Times::counting)
      .def_ro("passed", &Times::passed)
      .def_ro("each", &Times::each)
      .def_ro("whole", &Times::whole)
      .def_ro("sums", &Times::sums)
      .def_ro("stacks", &Times::stacks)
      .def_ro("last", &Times::last)
      .def_ro("means", &Times::means);

  static nb::exception<Refused> refused(module, "CannotMicroBatch");
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const Refused& r) {
      nb::object args = nb::make_tuple(r.why, r.op, r.sum, r.heavy);
      PyErr_SetObject(refused.ptr(), args.ptr());
    }
  });

  module.def(
      "micro_batch_times",
      [](const nb::bytes& bytecode, std::int32_t main, Ints arguments,
         std::int64_t micro_batches, Ints each, const AskCut& describe) {
        const importer::ModuleStructure structure =
            importer::read_bytecode({bytecode.c_str(), bytecode.size()});
        const Batch batch{std::move(arguments), micro_batches, std::move(each)};
        return micro_batch::times_of(structure, main, batch, [&](std::int32_t op) {
          return nb::cast<OpCut>(describe(op));
        });
      },
      "bytecode"_a, nb::kw_only(), "main"_a, "arguments"_a, "micro_batches"_a, "each"_a,
      "describe"_a, "When each value is known; raises CannotMicroBatch(why, op, sum, heavy).");
}

}  // namespace autoshard
