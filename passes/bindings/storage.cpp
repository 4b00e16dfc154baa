#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "memory/buffer_reuse.h"
#include "memory/peak.h"
#include "memory/program_memory.h"
#include "memory/waiting_matmuls.h"

namespace nb = nanobind;

namespace autoshard {
namespace {

/// The axes of each dim of each value.
using Shardings = std::vector<std::vector<std::vector<std::int32_t>>>;

std::vector<Sharding> from_lists(const Shardings& lists, const Program& program) {
  if (lists.size() != program.values.size()) {
    throw InvalidProgram("values and shardings differ in number");
  }
  std::vector<Sharding> shardings;
  for (const auto& dims : lists) {
    Sharding& sharding = shardings.emplace_back();
    for (const auto& axes : dims) {
      AxisList& list = sharding.dims.emplace_back();
      for (std::int32_t axis : axes) {
        if (axis < 0 || axis >= program.mesh.rank()) throw InvalidProgram("axis out of range");
        list.push_back(static_cast<AxisIndex>(axis));
      }
    }
  }
  return shardings;
}

/// Of a compiler, by name.
using Answers = std::map<std::string, double>;
using Flags = std::vector<std::vector<bool>>;
/// Per value (first, last), per op whether each operand is read and each result is written,
/// and the moment of each op.
using StorageTuple = std::tuple<std::vector<std::pair<std::int32_t, std::int32_t>>, Flags,
                                Flags, std::vector<std::int32_t>>;

StorageTuple storage_of(const Program& program, const Answers& compiler) {
  const ProgramMemory memory = memory_of(program, compiler_of(compiler));
  StorageTuple result;
  auto& [lifetimes, reads, writes, moments] = result;
  for (std::size_t v = 0; v < program.values.size(); ++v) {
    lifetimes.emplace_back(memory.live[v].first, memory.live[v].last);
  }
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const auto op = static_cast<std::int32_t>(i);
    reads.push_back(memory.reads[op]);
    writes.push_back(memory.writes[op]);
    moments.push_back(memory.point[op]);
  }
  return result;
}

/// (bytes, moment, (value, bytes) of what lives then)
using PeakTuple =
    std::tuple<double, std::int32_t, std::vector<std::pair<std::int32_t, double>>>;

PeakTuple peak_of(const Program& program, const Shardings& shardings,
                  const std::vector<std::pair<std::int32_t, double>>& transients,
                  const Answers& compiler) {
  const ProgramMemory memory = memory_of(program, compiler_of(compiler));
  std::vector<Transient> list;
  for (const auto& [op, bytes] : transients) {
    if (op < 0 || static_cast<std::size_t>(op) >= program.ops.size()) {
      throw InvalidProgram("op of a transient out of range");
    }
    const std::int32_t moment = memory.point[op];
    list.push_back({{moment, moment + 1}, bytes});
  }
  const Peak found = peak(memory.buffers, memory.num_points,
                          shards_of(from_lists(shardings, program), program.mesh), list);
  return {found.bytes, found.moment, found.live};
}

/// (first moment, behind the last one, bytes) of each value that is stored.
using StoredTuple = std::tuple<std::int32_t, std::int32_t, double>;

/// Which stored value lends each its memory, or -1; `made`: of results, when they are made.
std::vector<std::int32_t> lenders_of(
    const std::vector<StoredTuple>& tuples,
    const std::vector<std::pair<std::int32_t, std::int32_t>>& made, std::int32_t moments) {
  std::vector<Buffer> buffers;
  for (const auto& [first, last, bytes] : tuples) buffers.push_back({0, {first, last}, bytes});
  std::vector<ResultBuffer> results;
  for (const auto& [index, moment] : made) {
    if (index < 0 || static_cast<std::size_t>(index) >= buffers.size()) {
      throw nb::value_error("no such stored value");
    }
    results.push_back({index, moment});
  }
  reuse_results(results, moments, buffers);
  std::vector<std::int32_t> found;
  for (const Buffer& each : buffers) found.push_back(each.reused);
  return found;
}

}  // namespace

void bind_storage(nb::module_& module) {
  module.def("storage_of", &storage_of, nb::arg("program"), nb::arg("compiler") = Answers{},
             "Lifetimes of all values, reads, writes and moments of all ops; see "
             "passes/memory/program_memory.h. The compiler is its answers by name.");
  module.def("lenders_of", &lenders_of, nb::arg("stored"), nb::arg("made"), nb::arg("moments"),
             "Which result lends each stored value (first, last, bytes) its memory, -1: none; "
             "see passes/memory/buffer_reuse.h. `made`: (index, moment) of the results.");
  module.def("matmuls_that_wait", &matmuls_that_wait, nb::arg("program"),
             "Of each op, whether it is a matmul that waits; see "
             "passes/memory/waiting_matmuls.h.");
  module.def("peak", &peak_of, nb::arg("program"), nb::arg("shardings"), nb::arg("transients"),
             nb::arg("compiler") = Answers{},
             "Peak memory of a device: (bytes, moment, [(value, bytes)]), largest first. "
             "Shardings are axis lists by value and dim, transients (op, bytes).");
}

}  // namespace autoshard
