#include "recomputation/plan_numbers.h"

#include <algorithm>
#include <cstddef>

namespace autoshard::recomputation {
namespace {

using Place = planning::PlannedReshard::Place;

/// Into how many parts each sharding of a plan cuts a value.
std::vector<double> parts_of(const Mesh& mesh, const planning::CutTable& cuts) {
  std::vector<double> parts;
  for (const auto& dims : cuts.shardings) {
    double count = 1;
    for (const auto& axes : dims) {
      for (const std::int32_t axis : axes) count *= static_cast<double>(mesh.axis_sizes[axis]);
    }
    parts.push_back(count);
  }
  return parts;
}

/// Bytes of a value before it is cut: no element takes less than one.
double whole_bytes(const TensorType& type) {
  double bytes = static_cast<double>(std::max<std::int64_t>(type.element_bits, 8)) / 8;
  for (const std::int64_t dim : type.dims) bytes *= static_cast<double>(dim);
  return bytes;
}

/// Adds what is sent for ops.
void add_sent(const planning::PlanTable& plan, PlanNumbers& numbers,
              std::vector<double>& seconds) {
  const planning::ReshardTable& rows = plan.reshards;
  std::vector<double> of_row(rows.place.size());
  std::vector<bool> is_sent(rows.place.size());
  for (std::size_t at = 0; at < plan.collectives.reshard.size(); ++at) {
    const std::int32_t row = plan.collectives.reshard[at];
    of_row[row] += plan.collectives.seconds[at];
    is_sent[row] = true;
  }
  for (std::size_t row = 0; row < of_row.size(); ++row) {
    const std::int32_t op = rows.index[row];
    if (rows.place[row] == Place::join) continue;
    seconds[op] += of_row[row];
    if (!is_sent[row]) continue;
    if (rows.place[row] == Place::result) numbers.sends[op] = true;
    if (rows.place[row] == Place::operand) {
      numbers.sent_operands.emplace_back(op, rows.position[row]);
    }
  }
  std::sort(numbers.sent_operands.begin(), numbers.sent_operands.end());
}

}  // namespace

PlanNumbers numbers_of(const Program& program, const planning::PlanTable& plan,
                       const Compiler& compiler, std::span<const Rounded> rounded) {
  const std::size_t num_ops = program.ops.size();
  PlanNumbers numbers{.num_points = static_cast<std::int32_t>(plan.live_bytes.size())};
  numbers.memory = plan.memory
                       ? plan.memory
                       : std::make_shared<const ProgramMemory>(memory_of(program, compiler));
  const ProgramMemory& memory = *numbers.memory;
  numbers.sends.resize(num_ops);
  numbers.seconds = plan.op_seconds;
  add_sent(plan, numbers, numbers.seconds);
  for (std::size_t op = 0; op < num_ops; ++op) {
    numbers.points.push_back(memory.point[op]);
    numbers.seconds[op] *= program.ops[op].trips;
  }
  numbers.live = memory.live;
  const std::vector<double> parts = parts_of(program.mesh, plan.cuts);
  for (std::size_t value = 0; value < program.values.size(); ++value) {
    const TensorType& type = program.types[program.values[value].type];
    const double bytes = whole_bytes(type) / parts[plan.cuts.value_sharding[value]];
    numbers.bytes.push_back(bytes * memory.padding[value]);
    numbers.element_bytes.push_back(bytes);
  }
  for (const auto& [source, result] : rounded) {
    if (memory.live[result].last <= numbers.live[source].last) continue;
    numbers.live[source].last = memory.live[result].last;
    numbers.bytes[source] = numbers.bytes[result];
    numbers.element_bytes[source] = numbers.element_bytes[result];
  }
  return numbers;
}

}  // namespace autoshard::recomputation
