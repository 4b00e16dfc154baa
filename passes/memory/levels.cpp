#include "memory/levels.h"

#include <algorithm>

namespace autoshard {

std::vector<std::int32_t> levels_of(const ProgramIndex& index,
                                    const std::vector<bool>& counts) {
  std::vector<std::int32_t> levels(index.num_ops, 0);
  std::vector<std::int32_t> behind(index.num_ops, 0);
  // By op: the highest level behind any op up to it.
  std::vector<std::int32_t> highest_to(index.num_ops, 0);
  std::int32_t highest = 0;
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    const Op& op = index.op(i);
    std::int32_t& level = levels[i];
    if (op.after >= 0) level = highest_to[op.after];
    for (std::int32_t v : op.operands) {
      if (v == no_value || index.is_argument(v)) continue;
      const std::int32_t producer = index.producer[v];
      if (producer != no_op) {
        level = std::max(level, behind[producer]);
      } else if (!index.is_free(v)) {
        level = std::max(level, highest);
      }
    }
    behind[i] = level + (counts[i] ? 1 : 0);
    highest = std::max(highest, behind[i]);
    highest_to[i] = highest;
  }
  return levels;
}

}  // namespace autoshard
