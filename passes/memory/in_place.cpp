#include "memory/in_place.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace autoshard {
namespace {

/// A fusion that ends in a reduction reads `value`, and nothing else as large: a softmax or a
/// norm, which are one kernel with what reads both.
bool is_reduced(const FusedProgram& fused, std::int32_t value) {
  const std::vector<double>& bytes = fused.index.bytes;
  const auto is_of_value_alone = [&](std::int32_t root) {
    const auto reads = in(fused.reads.by_root, root);
    return fused.index.rule(root).work == Work::reduce &&
           std::all_of(reads.begin(), reads.end(), [&](const Read& read) {
             return read.value == value || 2 * bytes[read.value] < bytes[value];
           });
  };
  const auto readers = in(fused.uses.readers, value);
  return std::any_of(readers.begin(), readers.end(), [&](const Reader& reader) {
    const auto& roots = fused.fusions.roots[reader.op];
    return std::any_of(roots.begin(), roots.end(), is_of_value_alone);
  });
}

/// A root that may write over an operand.
class InPlaceOp {
 public:
  InPlaceOp(const FusedProgram& fused, const OpOrder& order, const Buffers& rules,
            const std::vector<LiveRange>& live, std::int32_t op)
      : fused_(fused),
        index_(fused.index),
        rules_(rules),
        live_(live),
        op_(op),
        point_(order.point[op]),
        result_(index_.op(op).results[0]),
        operand_(index_.rule(op).in_place_operand) {
    const auto leaving = fused.live_outs.argument.find(result_);
    leaves_ = leaving != fused.live_outs.argument.end();
    if (leaves_) argument_ = leaving->second;
    if (operand_ >= 0 && index_.op(op).operands[operand_] != no_value) {
      updated_ = buffer_read(index_, fused.aliases,
                             fused.aliases.of(index_.op(op).operands[operand_]),
                             index_.loops.of_op(op));
    }
  }

  /// The first operand that the result can be written over, or `no_value`.
  std::int32_t overwritten() const {
    if (fused_.fusions.holds_rows[op_]) return no_value;
    const auto reads = in(fused_.reads.by_root, op_);
    const auto first = std::find_if(reads.begin(), reads.end(),
                                    [&](const Read& read) { return dies_in_place(read); });
    if (first == reads.end()) return no_value;
    // An operand that is read otherwise, too, must stay.
    const bool stays = std::any_of(reads.begin(), reads.end(), [&](const Read& read) {
      return read.value == first->value && !dies_in_place(read);
    });
    return stays ? no_value : first->value;
  }

 private:
  /// Whether the compiler lets the result have the buffer of `value`.
  bool may_take(std::int32_t value) const {
    const std::int32_t producer = index_.producer[value];
    if (rules_.tuples_of_convolutions && producer != no_op &&
        index_.rule(producer).has_workspace) {
      return false;
    }
    if (rules_.keeps_reduced && operand_ < 0 && is_reduced(fused_, value)) return false;
    // The result has a buffer of its own, which others use until the result is made.
    const bool is_reused = rules_.lending_results && leaves_ && argument_ == no_value;
    if (leaves_ && argument_ != value && !is_reused) return false;
    return !index_.is_argument(value) || (leaves_ && !is_reused);
  }

  bool dies_in_place(const Read& read) const {
    const std::int32_t v = read.value;
    if (live_[v].last != point_ + 1 || index_.bytes[v] != index_.bytes[result_]) return false;
    if (!may_take(v)) return false;
    if (operand_ >= 0) return v == updated_ && read.op == op_;
    return index_.rule(read.op).work == Work::elementwise &&
           index_.elements(index_.op(read.op).results[0]) == index_.elements(result_);
  }

  const FusedProgram& fused_;
  const ProgramIndex& index_;
  const Buffers& rules_;
  const std::vector<LiveRange>& live_;
  std::int32_t op_, point_, result_, operand_;
  /// What an update writes into.
  std::int32_t updated_ = no_value;
  /// The result leaves the program, in the buffer of this argument.
  bool leaves_ = false;
  std::int32_t argument_ = no_value;
};

}  // namespace

void end_where_overwritten(const FusedProgram& fused, const OpOrder& order,
                           const Buffers& rules, std::vector<LiveRange>& live) {
  const ProgramIndex& index = fused.index;
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    const Op& op = index.op(i);
    if (!fused.fusions.is_root(i) || op.results.empty() || op.results[0] == no_value) continue;
    const Rule& rule = index.rule(i);
    if (rule.in_place_operand < 0 && rule.work != Work::elementwise) continue;
    const std::int32_t taken = InPlaceOp(fused, order, rules, live, i).overwritten();
    if (taken != no_value) live[taken].last = order.point[i];
  }
}

}  // namespace autoshard
