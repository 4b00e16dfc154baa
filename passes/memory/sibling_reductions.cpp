#include "memory/sibling_reductions.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <tuple>
#include <utility>

namespace autoshard {
namespace {

/// By op: how many stored reductions are on the longest way to it. What leaves a loop is
/// behind all that stands before it.
std::vector<std::int32_t> levels_of(const ProgramIndex& index, const Fusions& fusions) {
  std::vector<std::int32_t> levels(index.num_ops, 0);
  std::vector<std::int32_t> behind(index.num_ops, 0);
  std::int32_t highest = 0;
  // By op: the highest level behind any op up to it.
  std::vector<std::int32_t> highest_to(index.num_ops, 0);
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
    const bool is_counted = index.rule(i).work == Work::reduce && fusions.is_root(i);
    behind[i] = level + (is_counted ? 1 : 0);
    highest = std::max(highest, behind[i]);
    highest_to[i] = highest;
  }
  return levels;
}

/// The sizes of the operand's dims, those that stay negated.
std::vector<std::int64_t> reduced_shape(const Rule& rule) {
  std::vector<std::int64_t> shape;
  for (const auto& dim : rule.operands[0].dims) {
    for (std::int32_t factor : dim) {
      const auto& [size, kind, halo] = rule.factors[factor];
      shape.push_back(kind == FactorKind::reduction ? size : -size);
    }
  }
  return shape;
}

/// Those in one kernel, by the op that stands for it.
std::int32_t first_of(std::vector<std::int32_t>& kernel, std::int32_t op) {
  while (kernel[op] != op) op = kernel[op] = kernel[kernel[op]];
  return op;
}

}  // namespace

std::vector<std::int32_t> sibling_reductions(const ProgramIndex& index, const Fusions& fusions,
                                             const FusionReads& reads) {
  std::vector<std::int32_t> kernel(index.num_ops);
  for (std::int32_t i = 0; i < index.num_ops; ++i) kernel[i] = i;
  const std::vector<std::int32_t> levels = levels_of(index, fusions);
  // By loop, level, shape and value that is read: the first reduction.
  std::map<std::tuple<std::int32_t, std::int32_t, std::vector<std::int64_t>, std::int32_t>,
           std::int32_t>
      known;
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    const Rule& rule = index.rule(i);
    if (rule.work != Work::reduce || rule.is_cheap || !fusions.is_root(i)) continue;
    const std::vector<std::int64_t> shape = reduced_shape(rule);
    for (const Read& read : in(reads.by_root, i)) {
      const auto [found, is_new] =
          known.try_emplace({index.loops.of_op(i), levels[i], shape, read.value}, i);
      if (is_new) continue;
      const std::int32_t a = first_of(kernel, found->second), b = first_of(kernel, i);
      kernel[std::max(a, b)] = std::min(a, b);
    }
  }
  for (std::int32_t i = 0; i < index.num_ops; ++i) kernel[i] = first_of(kernel, i);
  return kernel;
}

}  // namespace autoshard
