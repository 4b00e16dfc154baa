#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "memory/buffer_reuse.h"
#include "memory/peak.h"
#include "memory/program_memory.h"
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

/// Answers of a compiler, by name.
using Answers = std::map<std::string, double>;

/// What the core says of the memory of a program.
struct MemoryTables {
  /// By value: the first program point, and the one behind the last.
  std::vector<std::pair<std::int32_t, std::int32_t>> live_ranges;
  /// By op, of each operand and of each result.
  std::vector<std::vector<std::int32_t>> reads;
  std::vector<std::vector<bool>> writes;
  std::vector<std::int32_t> points;
  std::vector<std::vector<FusedWork>> fused;
  std::vector<bool> launched, packs;
};

MemoryTables memory_tables(const Program& program, const Answers& compiler) {
  const ProgramMemory memory = memory_of(program, compiler_of(compiler));
  MemoryTables tables;
  for (const LiveRange& live : memory.live) {
    tables.live_ranges.emplace_back(live.first, live.last);
  }
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const auto op = static_cast<std::int32_t>(i);
    tables.reads.push_back(memory.parts[i].reads);
    tables.writes.push_back(memory.parts[i].writes);
    tables.points.push_back(memory.point[op]);
    tables.fused.push_back(memory.parts[i].fused);
    tables.launched.push_back(memory.parts[i].is_launched);
    tables.packs.push_back(memory.parts[i].packs);
  }
  return tables;
}

Peak peak_of(const Program& program, const std::vector<Dims>& shardings,
             const std::vector<std::pair<std::int32_t, double>>& transients,
             const Answers& compiler) {
  const ProgramMemory memory = memory_of(program, compiler_of(compiler));
  std::vector<Transient> list;
  for (const auto& [op, bytes] : transients) {
    if (op < 0 || static_cast<std::size_t>(op) >= program.ops.size()) {
      throw InvalidProgram("op of a transient out of range");
    }
    const std::int32_t point = memory.point[op];
    list.push_back({{point, point + 1}, bytes});
  }
  return peak(memory.buffers, memory.num_points,
              shards_of(from_lists(shardings, program), program.mesh), list);
}

/// By buffer: the one whose memory it uses, or -1. `made`: indices of results, and the points
/// at which they are made.
std::vector<std::int32_t> reused_buffers(
    std::vector<Buffer> buffers,
    const std::vector<std::pair<std::int32_t, std::int32_t>>& made, std::int32_t points) {
  std::vector<ResultBuffer> results;
  for (const auto& [index, point] : made) {
    if (index < 0 || static_cast<std::size_t>(index) >= buffers.size()) {
      throw nb::value_error("no such buffer");
    }
    results.push_back({index, point});
  }
  reuse_results(results, points, buffers);
  std::vector<std::int32_t> found;
  for (const Buffer& each : buffers) found.push_back(each.reused);
  return found;
}

}  // namespace

void bind_memory(nb::module_& module) {
  nb::class_<MemoryTables>(module, "MemoryTables",
                           "Which values of a program have buffers, and when; see "
                           "passes/memory/program_memory.h.")
      .def_ro("live_ranges", &MemoryTables::live_ranges,
              "By value: the first program point, and the one behind the last.")
      .def_ro("reads", &MemoryTables::reads,
              "By op: how many kernels read each operand from memory there.")
      .def_ro("writes", &MemoryTables::writes, "By op: whether it stores each result.")
      .def_ro("points", &MemoryTables::points, "By op: the program point at which it runs.")
      .def_ro("fused", &MemoryTables::fused, "By op: the others in the kernel of a matmul.")
      .def_ro("packs", &MemoryTables::packs,
              "By op: its reductions and narrow results count, as the first in their kernel.")
      .def_ro("launched", &MemoryTables::launched,
              "By op: whether a kernel of its own ends there, if it writes anything.");
  nb::class_<Buffer>(
      module, "Buffer",
      "The program points [first, last) at which a value takes memory, and its bytes.")
      .def(
          "__init__",
          [](Buffer* self, std::int32_t first, std::int32_t last, double bytes) {
            new (self) Buffer{0, {first, last}, bytes};
          },
          "first"_a, "last"_a, "bytes"_a);
  nb::class_<Peak>(module, "Peak", "The worst program point of a plan.")
      .def_ro("bytes", &Peak::bytes)
      .def_ro("point", &Peak::point)
      .def_ro("live", &Peak::live, "(value, bytes) of what lives then, largest first.");

  module.def("memory_tables", &memory_tables, "program"_a, "compiler"_a = Answers{},
             "When and where values of a program are in memory. The compiler is its answers "
             "by name.");
  module.def(
      "reused_buffers", &reused_buffers, "buffers"_a, "made"_a, "points"_a,
      "By buffer: the one whose memory it uses, or -1; see passes/memory/buffer_reuse.h. "
      "`made`: (index, point) of results.");
  module.def("matmuls_that_wait", &matmuls_that_wait, "program"_a,
             "Whether each op is a matmul that waits; see passes/memory/waiting_matmuls.h.");
  module.def("peak", &peak_of, "program"_a, "shardings"_a, "transients"_a,
             "compiler"_a = Answers{},
             "Peak memory of a device. Shardings are axis lists by value and dim, transients "
             "(op, bytes).");
}

}  // namespace autoshard
