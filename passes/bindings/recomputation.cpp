#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <utility>

#include "bindings/bindings.h"
#include "recomputation/block.h"
#include "recomputation/clones.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace autoshard {

using recomputation::Batch;
using recomputation::Block;
using recomputation::CloneRules;
using recomputation::Clones;
using recomputation::Dropped;
using recomputation::Op;
using recomputation::Storage;
using recomputation::Use;
using recomputation::Value;

namespace {

using Ints = std::vector<std::int32_t>;

constexpr std::size_t max_ops = std::numeric_limits<std::int32_t>::max();

void check_between(std::int64_t number, std::int64_t least, std::size_t end) {
  if (number < least || number >= static_cast<std::int64_t>(end)) {
    throw nb::value_error("a number is out of range");
  }
}

void check_in(const Ints& numbers, std::size_t size) {
  for (const std::int32_t number : numbers) check_between(number, 0, size);
}

/// A point of the program, or the one behind the last.
void check_point(const Block& block, std::int32_t point) {
  check_between(point, 0, static_cast<std::size_t>(block.num_points) + 1);
}

void add_op(Block& block, Op op) {
  check_point(block, op.point);
  check_point(block, op.ready);
  const auto position = static_cast<std::int32_t>(block.ops.size());
  check_in(op.operands, block.values.size());
  check_in(op.results, block.values.size());
  for (const std::int32_t number : op.results) {
    if (block.values[number].maker != position) throw nb::value_error("not made by this op");
  }
  for (const std::int32_t number : op.operands) {
    if (block.values[number].maker >= position)
      throw nb::value_error("read before it is made");
    Ints& readers = block.values[number].readers;
    if (readers.empty() || readers.back() != position) readers.push_back(position);
  }
  block.ops.push_back(std::move(op));
}

Clones clones_for(const Block& block, const std::vector<Dropped>& dropped,
                  const std::vector<Dropped>& sent, bool keep_sent, bool keep_parameters) {
  for (const auto* part : {&dropped, &sent}) {
    for (const Dropped& one : *part) {
      check_in({one.number}, block.values.size());
      check_in(block.values[one.number].demanders, block.ops.size());
      check_in({block.values[one.number].maker, one.late}, block.ops.size());
      check_between(one.early, -1, block.ops.size());
      check_point(block, one.middle);
    }
  }
  return recomputation::clones_for(block, dropped, sent,
                                   CloneRules{keep_sent, keep_parameters});
}

}  // namespace

void bind_recomputation(nb::module_& module) {
  nb::enum_<Storage>(module, "Storage", "Where a value is while others wait to read it.")
      .value("KEPT", Storage::kept,
             "In memory, whatever is chosen: arguments, results, scalars, what loops make.")
      .value("STORED", Storage::stored, "In memory, unless it is dropped and computed again.")
      .value("FUSED", Storage::fused, "Nowhere: the fusion that reads it computes it.")
      .value("FREE", Storage::free, "Nowhere: made of constants.");

  nb::class_<Block>(module, "RecomputedBlock",
                    "The ops of a block as numbers; see passes/recomputation/block.h.")
      .def(
          "__init__",
          [](Block* self, std::int32_t num_points) {
            if (num_points < 0) throw nb::value_error("num_points is negative");
            new (self) Block{{}, {}, num_points};
          },
          "num_points"_a)
      .def(
          "add_value",
          [](Block& block, std::int32_t maker, Storage storage, double bytes, std::int32_t end,
             Ints demanders, bool is_counted, bool is_parameter) {
            check_between(maker, storage == Storage::fused ? 0 : -1, max_ops);
            check_point(block, end);
            block.values.push_back({maker,
                                    storage,
                                    is_counted,
                                    is_parameter,
                                    bytes,
                                    end,
                                    {},
                                    std::move(demanders)});
          },
          "maker"_a, "storage"_a, "bytes"_a, "end"_a, "demanders"_a, nb::kw_only(),
          "is_counted"_a, "is_parameter"_a, "All of them come before the first op.")
      .def(
          "add_op",
          [](Block& block, Ints operands, Ints results, std::int32_t point, std::int32_t ready,
             double seconds, bool sends, bool gathers) {
            add_op(block, {std::move(operands), std::move(results), point, ready, seconds,
                           sends, gathers});
          },
          "operands"_a, "results"_a, "point"_a, "ready"_a, "seconds"_a, nb::kw_only(),
          "sends"_a, "gathers"_a, "In the order of the block.");

  nb::class_<Dropped>(module, "Dropped",
                      "A value that is not kept between two of its readers, by positions.")
      .def(
          "__init__",
          [](Dropped* self, std::int32_t number, std::int32_t early, std::int32_t late,
             std::int32_t middle) { new (self) Dropped{number, early, late, middle}; },
          "number"_a, nb::kw_only(), "early"_a, "late"_a, "middle"_a)
      .def_ro("number", &Dropped::number)
      .def_ro("early", &Dropped::early, "The last reader before, or the maker.")
      .def_ro("late", &Dropped::late, "The first reader behind.")
      .def_ro("middle", &Dropped::middle, "The point half way.");

  nb::class_<Batch>(module, "Batch", "Ops that run again before one reader.")
      .def_ro("position", &Batch::position, "Position of the reader.")
      .def_ro("ops", &Batch::ops,
              "Positions of the originals, in the order in which the copies run; none if the "
              "reader finds all it needs among earlier copies.")
      .def_ro("inputs", &Batch::inputs, "Values from memory that they read.");

  nb::class_<Use>(module, "HostUse", "When a value on the host is read behind its gap.")
      .def_ro("number", &Use::number)
      .def_ro(
          "first", &Use::first,
          "Position of the first op that reads it, or before which copies do that read it.")
      .def_ro("end", &Use::end, "Point from which nobody reads it any more.");

  nb::class_<Clones>(module, "Clones",
                     "Ops that run again for one set of dropped values, and what they change.")
      .def_ro("batches", &Clones::batches)
      .def_ro("seconds", &Clones::seconds,
              "Seconds of all ops that run again, less those that nobody needs any more.")
      .def_prop_ro(
          "change",
          [](const Clones& self) {
            return nb::ndarray<nb::numpy, const double, nb::ndim<1>>(
                self.change.data(), {self.change.size()}, nb::find(self));
          },
          "Bytes that live more on a device from each point on.")
      .def_ro("uses", &Clones::uses, "Values on the host meanwhile that are read again.");

  module.def("clones_for", &clones_for, "block"_a, "dropped"_a, "sent"_a, nb::kw_only(),
             "keep_sent"_a, "keep_parameters"_a,
             "What has to run again; see passes/recomputation/clones.h.");
}

}  // namespace autoshard
