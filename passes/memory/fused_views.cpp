#include "memory/fused_views.h"

#include <algorithm>
#include <cstddef>

namespace autoshard {
namespace {

/// Whether an op has nothing but several arrays side by side.
bool is_concatenation(const ProgramIndex& index, std::int32_t op) {
  const auto& operands = index.op(op).operands;
  const auto arrays = std::count_if(operands.begin(), operands.end(),
                                    [](std::int32_t v) { return v != no_value; });
  return index.rule(op).work == Work::view && arrays > 1;
}

/// Whether an op has some of a dim of its operand, and not a multiple of so many.
bool is_uneven_slice(const ProgramIndex& index, std::int32_t op, std::int64_t columns) {
  const auto &operands = index.op(op).operands, &results = index.op(op).results;
  if (index.rule(op).work != Work::view || operands.size() != 1) return false;
  if (operands[0] == no_value || results[0] == no_value) return false;
  const auto dims_of = [&](std::int32_t value) -> const std::vector<std::int64_t>& {
    return index.program.types[index.program.values[value].type].dims;
  };
  const auto &whole = dims_of(operands[0]), &part = dims_of(results[0]);
  if (part.size() != whole.size()) return false;
  for (std::size_t d = 0; d < part.size(); ++d) {
    if (part[d] < whole[d] && part[d] % columns != 0) return true;
  }
  return false;
}

}  // namespace

bool is_stored_pad(const FusionInput& input, std::int32_t op) {
  const Rule& rule = input.index.rule(op);
  return input.rules.stored_pads && rule.work == Work::view && rule.dilation > 1;
}

bool takes_viewed(const FusionInput& input, std::int32_t op, std::int32_t operand) {
  const ProgramIndex& index = input.index;
  if (is_stored_pad(input, op)) return false;
  const std::int64_t columns = input.rules.joined_columns;
  if (columns == 0 || !is_concatenation(index, op)) return true;
  const std::int32_t read = index.op(op).operands[operand];
  const std::int32_t producer =
      read == no_value ? no_op : index.producer[input.aliases.of(read)];
  if (producer == no_op || index.is_free(read)) return true;
  return index.rule(producer).work != Work::elementwise &&
         !is_uneven_slice(index, producer, columns);
}

}  // namespace autoshard
