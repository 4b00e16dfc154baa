#include "cost/storage.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "memory/lending.h"
#include "memory/peak.h"
#include "memory/waiting_matmuls.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace autoshard {
namespace {

std::vector<Sharding> from_lists(const std::vector<Dims>& lists, const Program& program) {
  if (lists.size() != program.values.size()) {
    throw InvalidProgram("values and shardings differ in number");
  }
  std::vector<Sharding> shardings;
  for (const Dims& dims : lists) {
    for (const auto& axes : dims) {
      for (std::int32_t axis : axes) {
        if (axis < 0 || axis >= program.mesh.rank()) throw InvalidProgram("axis out of range");
      }
    }
    shardings.push_back(sharding_of(dims));
  }
  return shardings;
}

/// Of a compiler, by name.
using Answers = std::map<std::string, double>;

/// What the core says of the memory of a program.
struct StorageTables {
  /// By value: the first moment, and behind the last one.
  std::vector<std::pair<std::int32_t, std::int32_t>> lifetimes;
  /// By op, of each operand and of each result.
  std::vector<std::vector<bool>> reads, writes;
  std::vector<std::int32_t> moments;
};

StorageTables storage_of(const Program& program, const Answers& compiler) {
  const Storage storage(program, compiler_of(compiler));
  StorageTables tables;
  for (std::size_t v = 0; v < program.values.size(); ++v) {
    const Lifetime lifetime = storage.lifetime(static_cast<std::int32_t>(v));
    tables.lifetimes.emplace_back(lifetime.first, lifetime.last);
  }
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const auto op = static_cast<std::int32_t>(i);
    tables.reads.push_back(storage.reads(op));
    tables.writes.push_back(storage.writes(op));
    tables.moments.push_back(storage.moment(op));
  }
  return tables;
}

Peak peak_of(const Program& program, const std::vector<Dims>& shardings,
             const std::vector<std::pair<std::int32_t, double>>& transients,
             const Answers& compiler) {
  const Storage storage(program, compiler_of(compiler));
  std::vector<Transient> list;
  for (const auto& [op, bytes] : transients) {
    if (op < 0 || static_cast<std::size_t>(op) >= program.ops.size()) {
      throw InvalidProgram("op of a transient out of range");
    }
    const std::int32_t moment = storage.moment(op);
    list.push_back({{moment, moment + 1}, bytes});
  }
  return peak(storage.stored(), storage.moments(),
              shards_of(from_lists(shardings, program), program.mesh), list);
}

/// Which of all that is stored lends each its storage, or -1; `made`: of results, when they
/// are made.
std::vector<std::int32_t> lenders_of(
    std::vector<Stored> stored, const std::vector<std::pair<std::int32_t, std::int32_t>>& made,
    std::int32_t moments) {
  std::vector<Lender> lenders;
  for (const auto& [index, moment] : made) {
    if (index < 0 || static_cast<std::size_t>(index) >= stored.size()) {
      throw nb::value_error("no such stored value");
    }
    lenders.push_back({index, moment});
  }
  lend(lenders, moments, stored);
  std::vector<std::int32_t> found;
  for (const Stored& each : stored) found.push_back(each.lender);
  return found;
}

}  // namespace

void bind_storage(nb::module_& module) {
  nb::class_<StorageTables>(module, "StorageTables",
                            "Which values of a program are stored, and when; see "
                            "passes/cost/storage.h.")
      .def_ro("lifetimes", &StorageTables::lifetimes,
              "By value: the first moment, and behind the last one.")
      .def_ro("reads", &StorageTables::reads, "By op: whether it reads each operand.")
      .def_ro("writes", &StorageTables::writes, "By op: whether it stores each result.")
      .def_ro("moments", &StorageTables::moments, "By op: when it runs.");
  nb::class_<Stored>(module, "Stored", "One stretch of moments in which a value takes memory.")
      .def(
          "__init__",
          [](Stored* self, std::int32_t first, std::int32_t last, double bytes) {
            new (self) Stored{0, {first, last}, bytes};
          },
          "first"_a, "last"_a, "bytes"_a);
  nb::class_<Peak>(module, "Peak", "The worst moment of a plan.")
      .def_ro("bytes", &Peak::bytes)
      .def_ro("moment", &Peak::moment)
      .def_ro("live", &Peak::live, "(value, bytes) of what lives then, largest first.");

  module.def("storage_of", &storage_of, "program"_a, "compiler"_a = Answers{},
             "The compiler is its answers by name.");
  module.def("lenders_of", &lenders_of, "stored"_a, "made"_a, "moments"_a,
             "Which result lends each its storage, -1: none; see passes/memory/lending.h. "
             "`made`: (index, moment) of the results.");
  module.def("matmuls_that_wait", &matmuls_that_wait, "program"_a,
             "Of each op, whether it is a matmul that waits; see "
             "passes/memory/waiting_matmuls.h.");
  module.def("peak", &peak_of, "program"_a, "shardings"_a, "transients"_a,
             "compiler"_a = Answers{},
             "Peak memory of a device. Shardings are axis lists by value and dim, transients "
             "(op, bytes).");
}

}  // namespace autoshard
