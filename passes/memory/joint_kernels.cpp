#include "memory/joint_kernels.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <tuple>
#include <utility>

#include "memory/levels.h"

namespace autoshard {
namespace {

class Kernels {
 public:
  Kernels(const ProgramIndex& index, const Fusions& fusions, const FusionReads& reads)
      : index_(index),
        fusions_(fusions),
        reads_(reads),
        kernel_(index.num_ops),
        is_of_matmul_(index.num_ops, false),
        has_writer_(index.num_ops, false) {
    for (std::int32_t i = 0; i < index.num_ops; ++i) {
      kernel_[i] = i;
      if (index.rule(i).work != Work::matmul) continue;
      for (std::int32_t root : fusions.roots[i]) is_of_matmul_[root] = true;
    }
    level_ = levels([&](std::int32_t op) { return fusions_.is_root(op); });
    start_ = level_;
  }

  std::vector<std::int32_t> find(const Fusion& rules) {
    if (rules.several_results) join_results();
    if (rules.joint_loops) join_loops();
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

  /// Whether a kernel that ends in the op computes each element by itself.
  bool is_loop(std::int32_t op) const {
    const Rule& rule = index_.rule(op);
    return rule.work == Work::elementwise && rule.in_place_operand < 0 &&
           rule.results.size() == 1 && fusions_.is_root(op) && !fusions_.holds_rows[op] &&
           !is_of_matmul_[op];
  }

  double elements(std::int32_t op) const { return index_.elements(index_.op(op).results[0]); }

  std::int32_t first_of(std::int32_t op) {
    while (kernel_[op] != op) op = kernel_[op] = kernel_[kernel_[op]];
    return op;
  }

  std::int32_t join(std::int32_t a, std::int32_t b) {
    a = first_of(a), b = first_of(b);
    const std::int32_t first = std::min(a, b);
    start_[first] = std::min(start_[a], start_[b]);
    return kernel_[std::max(a, b)] = first;
  }

  /// Whether all that an op reads is made in a kernel by elements, or before the kernel
  /// starts.
  bool can_join(std::int32_t op, std::int32_t kernel, double elements) {
    const auto reads = in(reads_.by_root, op);
    return std::all_of(reads.begin(), reads.end(), [&](const Read& read) {
      const std::int32_t producer = index_.producer[read.value];
      if (producer == no_op) return true;
      if (first_of(producer) != kernel) return level_[producer] < start_[kernel];
      return is_loop(producer) && this->elements(producer) == elements;
    });
  }

  /// What was fused as one kernel of several results.
  void join_results() {
    for (std::int32_t i = 0; i < index_.num_ops; ++i) {
      if (fusions_.sibling[i] != no_op) join(i, fusions_.sibling[i]);
    }
  }

  void join_loops() {
    // By loop, value that is read and elements that are written: the last op.
    std::map<std::tuple<std::int32_t, std::int32_t, double>, std::int32_t> known;
    for (std::int32_t i = 0; i < index_.num_ops; ++i) {
      if (!is_loop(i)) continue;
      const std::int32_t loop = index_.loops.of_op(i);
      const double size = elements(i);
      const auto try_with = [&](std::int32_t op) {
        if (kernel_[i] == i && can_join(i, first_of(op), size)) join(op, i);
      };
      for (const Read& read : in(reads_.by_root, i)) {
        const std::int32_t producer = index_.producer[read.value];
        const bool is_alike = producer != no_op && is_loop(producer) &&
                              index_.loops.of_op(producer) == loop &&
                              elements(producer) == size;
        if (is_alike) try_with(producer);
      }
      for (const Read& read : in(reads_.by_root, i)) {
        if (index_.elements(read.value) != size) continue;
        const auto [found, is_new] = known.try_emplace({loop, read.value, size}, i);
        if (!is_new) try_with(found->second);
        found->second = i;
      }
    }
  }

  /// By op: the longest way to it, in ops that `counts` tells.
  template <typename Counts>
  std::vector<std::int32_t> levels(const Counts& counts) const {
    std::vector<bool> is_counted(index_.num_ops);
    for (std::int32_t i = 0; i < index_.num_ops; ++i) is_counted[i] = counts(i);
    return levels_of(index_, is_counted);
  }

  /// The sizes of the operand's dims, those that stay negated.
  std::vector<std::int64_t> reduced_shape(std::int32_t op) const {
    const Rule& rule = index_.rule(op);
    std::vector<std::int64_t> shape;
    for (const auto& dim : rule.operands[0].dims) {
      for (std::int32_t factor : dim) {
        const Factor& it = rule.factors[factor];
        shape.push_back(it.kind == FactorKind::reduction ? it.size : -it.size);
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
    std::vector<std::int32_t> last_of(index_.num_ops, 0);
    for (std::int32_t i = 0; i < index_.num_ops; ++i) {
      if (is_reduction(i)) last_of[first_of(i)] = std::max(last_of[first_of(i)], level_[i]);
    }
    for (std::int32_t i = 0; i < index_.num_ops; ++i) {
      if (!is_reduction(i)) continue;
      const std::vector<std::int64_t> shape = reduced_shape(i);
      if (shape.empty() || shape.back() >= 0) continue;  // whole rows
      const std::int32_t first = first_of(i);
      // None of the others may wait for what only the writer makes possible.
      if (has_writer_[first] || level_[i] != last_of[first]) continue;
      const std::int32_t writer = writer_of(i);
      if (writer == no_op || has_writer_[first_of(writer)]) continue;
      has_writer_[join(writer, i)] = true;
    }
  }

  /// The op that stores what a reduction takes, if that can be done on the way.
  std::int32_t writer_of(std::int32_t op) {
    const std::int32_t operand = index_.op(op).operands[0];
    if (operand == no_value) return no_op;
    std::int32_t writer = no_op;
    for (const Read& read : in(reads_.by_root, op)) {
      const std::int32_t producer = index_.producer[read.value];
      if (producer == no_op || level_[producer] + 1 != level_[op]) continue;
      // Another one of the latest: the kernel would wait for itself, or has two of them.
      const bool is_other = writer != no_op && first_of(writer) != first_of(producer);
      if (is_other) return no_op;
      writer = producer;
    }
    if (writer == no_op || index_.rule(writer).work != Work::elementwise) return no_op;
    const double size = index_.elements(operand);
    const bool is_alike = fusions_.is_root(writer) &&
                          index_.loops.of_op(writer) == index_.loops.of_op(op) &&
                          elements(writer) == size;
    return is_alike && (kernel_[writer] == writer || can_join(op, first_of(writer), size))
               ? writer
               : no_op;
  }

  const ProgramIndex& index_;
  const Fusions& fusions_;
  const FusionReads& reads_;
  std::vector<std::int32_t> kernel_;
  /// By root: a matmul is in its kernel.
  std::vector<bool> is_of_matmul_;
  /// By op: the longest way to it, in kernels; by the first op of a kernel: to its start.
  std::vector<std::int32_t> level_, start_;
  /// By the first op of a kernel: it stores what it reduces.
  std::vector<bool> has_writer_;
};

}  // namespace

std::vector<std::int32_t> joint_kernels_of(const ProgramIndex& index, const Fusions& fusions,
                                           const FusionReads& reads, const Fusion& rules) {
  return Kernels(index, fusions, reads).find(rules);
}

}  // namespace autoshard
