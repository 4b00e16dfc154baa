#include "memory/window_maxima.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "memory/fusion_rules.h"

namespace autoshard {
namespace {

constexpr double index_bytes = 4;

/// The program point behind which what an op reads is there, in the loop of the op.
std::int32_t made_before(const FusedProgram& fused, const OpOrder& order, std::int32_t value,
                         std::int32_t op) {
  const ProgramIndex& index = fused.index;
  const std::int32_t producer = index.producer[fused.aliases.of(value)];
  const bool is_here =
      producer != no_op && index.loops.of_op(producer) == index.loops.of_op(op);
  return is_here ? order.point[producer] + 1 : order.point[op];
}

}  // namespace

std::vector<Buffer> window_maxima(const FusedProgram& fused, const OpOrder& order) {
  const ProgramIndex& index = fused.index;
  std::vector<Buffer> buffers;
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    if (!is_scatter_to_maxima(index, i) || fused.uses.is_dead[i]) continue;
    const Op& op = index.op(i);
    const std::int32_t gradient = op.operands[1], result = op.results[0];
    const std::int32_t end = order.point[i];
    const std::int32_t made = std::min(made_before(fused, order, op.operands[0], i), end);
    const auto dims = static_cast<double>(index.rule(i).operands[1].dims.size());
    buffers.push_back(
        {gradient, {made, end + 1}, index_bytes * dims * index.elements(gradient)});
    if (made < end) buffers.push_back({result, {made, end}, index.bytes[result]});
  }
  return buffers;
}

}  // namespace autoshard
