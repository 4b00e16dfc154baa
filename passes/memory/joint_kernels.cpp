#include "memory/reduction_kernels.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <tuple>
#include <utility>

namespace autoshard {
namespace {

class Kernels {
 public:
  Kernels(const ProgramIndex& index, const Fusions& fusions, const FusionReads& reads)
      : index_(index),
        fusions_(fusions),
        reads_(reads),
        kernel_(index.num_ops),
        has_writer_(index.num_ops, false) {
    for (std::int32_t i = 0; i < index.num_ops; ++i) kernel_[i] = i;
  }

  std::vector<std::int32_t> find(const Fusion& rules) {
    if (rules.sibling_reductions) join_siblings();
    if (rules.reduced_as_written) join_writers();
    for (std::int32_t i = 0; i < index_.num_ops; ++i) kernel_[i] = first_of(i);
    return std::move(kernel_);
  }

 private:
  bool is_reduction(std::int32_t op) const {
    const Rule& rule = index_.rule(op);
    return rule.work == Work::reduce && !rule.is_cheap && fusions_.is_root(op);
  }

  std::int32_t first_of(std::int32_t op) {
    while (kernel_[op] != op) op = kernel_[op] = kernel_[kernel_[op]];
    return op;
  }

  std::int32_t join(std::int32_t a, std::int32_t b) {
    a = first_of(a), b = first_of(b);
    return kernel_[std::max(a, b)] = std::min(a, b);
  }

  /// By op: the longest way to it, in steps that `counts` tells. What leaves a loop is behind
  /// all that stands before it.
  template <typename Counts>
  std::vector<std::int32_t> levels(const Counts& counts) const {
    std::vector<std::int32_t> levels(index_.num_ops, 0);
    std::vector<std::int32_t> behind(index_.num_ops, 0);
    // By op: the highest level behind any op up to it.
    std::vector<std::int32_t> highest_to(index_.num_ops, 0);
    std::int32_t highest = 0;
    for (std::int32_t i = 0; i < index_.num_ops; ++i) {
      const Op& op = index_.op(i);
      std::int32_t& level = levels[i];
      if (op.after >= 0) level = highest_to[op.after];
      for (std::int32_t v : op.operands) {
        if (v == no_value || index_.is_argument(v)) continue;
        const std::int32_t producer = index_.producer[v];
        if (producer != no_op) {
          level = std::max(level, behind[producer]);
        } else if (!index_.is_free(v)) {
          level = std::max(level, highest);
        }
      }
      behind[i] = level + (counts(i) ? 1 : 0);
      highest = std::max(highest, behind[i]);
      highest_to[i] = highest;
    }
    return levels;
  }

  /// The sizes of the operand's dims, those that stay negated.
  std::vector<std::int64_t> reduced_shape(std::int32_t op) const {
    const Rule& rule = index_.rule(op);
    std::vector<std::int64_t> shape;
    for (const auto& dim : rule.operands[0].dims) {
      for (std::int32_t factor : dim) {
        const auto& [size, kind, halo] = rule.factors[factor];
        shape.push_back(kind == FactorKind::reduction ? size : -size);
      }
    }
    return shape;
  }

  void join_siblings() {
    const std::vector<std::int32_t> level =
        levels([&](std::int32_t op) { return is_reduction(op); });
    // By loop, level, shape and value that is read: the first reduction.
    std::map<std::tuple<std::int32_t, std::int32_t, std::vector<std::int64_t>, std::int32_t>,
             std::int32_t>
        known;
    for (std::int32_t i = 0; i < index_.num_ops; ++i) {
      if (!is_reduction(i)) continue;
      const std::vector<std::int64_t> shape = reduced_shape(i);
      for (const Read& read : in(reads_.by_root, i)) {
        const auto [found, is_new] =
            known.try_emplace({index_.loops.of_op(i), level[i], shape, read.value}, i);
        if (!is_new) join(found->second, i);
      }
    }
  }

  void join_writers() {
    const std::vector<std::int32_t> level =
        levels([&](std::int32_t op) { return fusions_.is_root(op); });
    std::vector<std::int32_t> last_of(index_.num_ops, 0);
    for (std::int32_t i = 0; i < index_.num_ops; ++i) {
      if (is_reduction(i)) last_of[first_of(i)] = std::max(last_of[first_of(i)], level[i]);
    }
    for (std::int32_t i = 0; i < index_.num_ops; ++i) {
      if (!is_reduction(i)) continue;
      const std::vector<std::int64_t> shape = reduced_shape(i);
      if (shape.empty() || shape.back() >= 0) continue;  // whole rows
      const std::int32_t first = first_of(i);
      // None of the others may wait for what only the writer makes possible.
      if (has_writer_[first] || level[i] != last_of[first]) continue;
      const std::int32_t writer = writer_of(i, level);
      if (writer == no_op || has_writer_[first_of(writer)]) continue;
      has_writer_[join(writer, i)] = true;
    }
  }

  /// The op that stores what a reduction takes, if that can be done on the way.
  std::int32_t writer_of(std::int32_t op, const std::vector<std::int32_t>& level) const {
    const std::int32_t operand = index_.op(op).operands[0];
    if (operand == no_value) return no_op;
    std::int32_t writer = no_op;
    for (const Read& read : in(reads_.by_root, op)) {
      const std::int32_t producer = index_.producer[read.value];
      if (producer == no_op || level[producer] + 1 != level[op]) continue;
      // Another one of the latest: the kernel would wait for itself, or has two of them.
      if (writer != no_op && writer != producer) return no_op;
      writer = producer;
    }
    if (writer == no_op || index_.rule(writer).work != Work::elementwise) return no_op;
    const bool is_alike =
        fusions_.is_root(writer) && index_.loops.of_op(writer) == index_.loops.of_op(op) &&
        index_.elements(index_.op(writer).results[0]) == index_.elements(operand);
    return is_alike ? writer : no_op;
  }

  const ProgramIndex& index_;
  const Fusions& fusions_;
  const FusionReads& reads_;
  std::vector<std::int32_t> kernel_;
  /// By the first op of a kernel: it stores what it reduces.
  std::vector<bool> has_writer_;
};

}  // namespace

std::vector<std::int32_t> kernels_of(const ProgramIndex& index, const Fusions& fusions,
                                     const FusionReads& reads, const Fusion& rules) {
  return Kernels(index, fusions, reads).find(rules);
}

}  // namespace autoshard
