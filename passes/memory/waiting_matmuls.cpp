#include "memory/waiting_matmuls.h"

#include <cstdint>

namespace autoshard {

std::vector<bool> matmuls_that_wait(const Program& program) {
  const auto num_ops = static_cast<std::int32_t>(program.ops.size());
  std::vector<bool> is_argument(program.values.size(), false);
  for (const Argument& argument : program.arguments) {
    if (argument.value != no_value) is_argument[argument.value] = true;
  }
  // Read by a matmul; read by one that another one is computed from.
  std::vector<bool> leads(program.values.size(), false), drives(program.values.size(), false);
  std::vector<bool> waits(num_ops, false);
  for (bool changes = true; changes;) {
    changes = false;
    const auto mark = [&](std::int32_t value, bool does_lead, bool does_drive) {
      if ((leads[value] || !does_lead) && (drives[value] || !does_drive)) return;
      leads[value] = leads[value] || does_lead;
      drives[value] = drives[value] || does_drive;
      changes = true;
    };
    for (const Join& join : program.joins) {
      if (is_argument[join.target]) continue;
      mark(join.source, leads[join.target], drives[join.target]);
    }
    for (std::int32_t i = num_ops; i-- > 0;) {
      const Op& op = program.ops[i];
      bool does_lead = false, does_drive = false;
      for (std::int32_t v : op.results) {
        does_lead = does_lead || (v != no_value && leads[v]);
        does_drive = does_drive || (v != no_value && drives[v]);
      }
      const bool is_matmul = program.rules[op.rule].work == Work::matmul;
      waits[i] = is_matmul && !does_drive;
      for (std::int32_t v : op.operands) {
        if (v != no_value) mark(v, does_lead || is_matmul, is_matmul ? does_lead : does_drive);
      }
    }
  }
  return waits;
}

}  // namespace autoshard
