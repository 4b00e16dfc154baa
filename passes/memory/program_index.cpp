#include "memory/program_index.h"

namespace autoshard {
namespace {

Lists<std::int32_t> readers_of(const Program& program) {
  std::vector<std::pair<std::int32_t, std::int32_t>> readings;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    for (std::int32_t v : program.ops[i].operands) {
      if (v != no_value) readings.emplace_back(v, static_cast<std::int32_t>(i));
    }
  }
  return {program.values.size(), std::move(readings)};
}

}  // namespace

ProgramIndex::ProgramIndex(const Program& program)
    : program(program),
      loops(program),
      num_ops(static_cast<std::int32_t>(program.ops.size())),
      num_values(program.values.size()),
      num_points(std::max(1, num_ops)),
      bytes(num_values),
      producer(num_values, no_op),
      argument(num_values, no_argument),
      slot(num_values, no_slot),
      readers(::autoshard::readers_of(program)) {
  for (std::size_t v = 0; v < num_values; ++v) {
    bytes[v] = program.types[program.values[v].type].bytes();
  }
  for (std::int32_t i = 0; i < num_ops; ++i) {
    for (std::int32_t v : program.ops[i].results) {
      if (v != no_value) producer[v] = i;
    }
  }
  for (std::size_t a = 0; a < program.arguments.size(); ++a) {
    const std::int32_t v = program.arguments[a].value;
    if (v != no_value) argument[v] = static_cast<std::int32_t>(a);
  }
  for (std::size_t l = 0; l < program.loops.size(); ++l) {
    const Loop& loop = program.loops[l];
    for (std::size_t k = 0; k < loop.carried.size(); ++k) {
      if (loop.yielded[k] == no_value || loop.yielded[k] == loop.carried[k]) continue;
      slot[loop.carried[k]] = static_cast<std::int32_t>(slots.size());
      slots.push_back({static_cast<std::int32_t>(l), loop.carried[k], loop.yielded[k]});
    }
  }
}

double ProgramIndex::elements(std::int32_t value) const {
  double count = 1;
  if (value == no_value) return count;
  for (std::int64_t dim : dims(value)) count *= static_cast<double>(dim);
  return count;
}

double ProgramIndex::devices() const {
  double count = 1;
  for (std::int64_t size : program.mesh.axis_sizes) count *= static_cast<double>(size);
  return count;
}

}  // namespace autoshard
