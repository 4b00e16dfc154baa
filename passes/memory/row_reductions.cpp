#include "memory/row_reductions.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace autoshard {
namespace {

class RowReductions {
 public:
  explicit RowReductions(const FusionInput& input)
      : input_(input),
        index_(input.index),
        is_turned_(index_.num_values, false),
        is_of_rows_(index_.num_values, false),
        found_(index_.num_ops, false) {}

  std::vector<bool> find() {
    if (input_.rules.row_reductions == 0) return found_;
    for (std::int32_t i = 0; i < index_.num_ops; ++i) {
      const Op& op = index_.op(i);
      if (op.results.size() != 1 || op.results[0] == no_value) continue;
      is_turned_[op.results[0]] = turns(i);
      found_[i] = reduces_rows(i) && (is_joined_once(i) || reads_rows(i));
      is_of_rows_[op.results[0]] = found_[i] || (is_on_the_way(i) && reads_rows(i));
    }
    return std::move(found_);
  }

 private:
  /// Whether the last dim of the result of `op` is not the last one of what it is computed
  /// from: a kernel does not find its rows in one piece.
  bool turns(std::int32_t op) const {
    const Rule& rule = index_.rule(op);
    if (rule.work != Work::elementwise && rule.work != Work::view) return false;
    for (std::size_t k = 0; k < rule.operands.size(); ++k) {
      const std::int32_t v = index_.op(op).operands[k];
      if (v == no_value || index_.is_free(v)) continue;
      if (is_turned_[v]) return true;
      if (index_.elements(v) == index_.elements(index_.op(op).results[0]) &&
          minor_factor(rule, rule.operands[k]) != minor_factor(rule, rule.results[0])) {
        return true;
      }
    }
    return false;
  }

  /// The factor of the elements that lie side by side, dims of one element aside; -1: none.
  static std::int32_t minor_factor(const Rule& rule, const RuleTensor& tensor) {
    for (auto dim = tensor.dims.rbegin(); dim != tensor.dims.rend(); ++dim) {
      for (auto factor = dim->rbegin(); factor != dim->rend(); ++factor) {
        if (rule.factors[*factor].size > 1) return *factor;
      }
    }
    return -1;
  }

  /// Whether `op` reduces the last dim of one operand, that lies in rows of few elements, and
  /// no other.
  bool reduces_rows(std::int32_t op) const {
    const Rule& rule = index_.rule(op);
    const std::int32_t operand = index_.op(op).operands[0];
    if (rule.work != Work::reduce || rule.is_cheap || operand == no_value) return false;
    if (input_.uses.must_store[index_.op(op).results[0]] || is_turned_[operand]) return false;
    const std::int32_t minor = minor_factor(rule, rule.operands[0]);
    if (minor < 0 || rule.factors[minor].kind != FactorKind::reduction) return false;
    const auto length = static_cast<double>(rule.factors[minor].size);
    return length <= static_cast<double>(input_.rules.row_reductions) &&
           index_.elements(operand) == length * index_.elements(index_.op(op).results[0]);
  }

  /// Whether what is made of the result of `op`, with one reader each, meets the operand.
  bool is_joined_once(std::int32_t op) const {
    const std::int32_t rows = index_.op(op).operands[0];
    const double whole = index_.elements(rows);
    // Equal ops are one to a compiler: what they make of it.
    std::vector<std::int32_t> made = {index_.op(op).results[0]};
    while (true) {
      const std::optional<Reader> reader = only_reader(made);
      if (!reader || index_.loops.of_op(reader->op) != index_.loops.of_op(op)) return false;
      const Op& next = index_.op(reader->op);
      if (index_.elements(next.results[0]) == whole &&
          index_.rule(reader->op).work == Work::elementwise) {
        return std::any_of(next.operands.begin(), next.operands.end(), [&](std::int32_t w) {
          return w != no_value && !contains(made, input_.aliases.of(w)) &&
                 core_of(w) == core_of(rows);
        });
      }
      made = results_of_readers(made);
    }
  }

  static bool contains(const std::vector<std::int32_t>& values, std::int32_t value) {
    return std::find(values.begin(), values.end(), value) != values.end();
  }

  /// The op that reads equal values, or the first of equal ops that do; none if others do, or
  /// if they are stored.
  std::optional<Reader> only_reader(const std::vector<std::int32_t>& equal) const {
    std::optional<Reader> only;
    for (std::int32_t v : equal) {
      if (input_.uses.must_store[v]) return std::nullopt;
      for (const Reader& reader : in(input_.uses.readers, v)) {
        if (!is_on_the_way(reader.op)) return std::nullopt;
        if (!only) only = reader;
        if (!are_equal(only->op, reader.op, equal)) return std::nullopt;
      }
    }
    return only;
  }

  /// Whether two ops make the same of the same operands, where those in `equal` are the same.
  bool are_equal(std::int32_t first, std::int32_t second,
                 const std::vector<std::int32_t>& equal) const {
    const Op &a = index_.op(first), &b = index_.op(second);
    return first == second ||
           (a.rule == b.rule &&
            std::equal(a.operands.begin(), a.operands.end(), b.operands.begin(),
                       b.operands.end(), [&](std::int32_t x, std::int32_t y) {
                         if (x == y) return true;
                         return x != no_value && y != no_value &&
                                contains(equal, input_.aliases.of(x)) &&
                                contains(equal, input_.aliases.of(y));
                       }));
  }

  std::vector<std::int32_t> results_of_readers(const std::vector<std::int32_t>& values) const {
    std::vector<std::int32_t> results;
    for (std::int32_t v : values) {
      for (const Reader& reader : in(input_.uses.readers, v)) {
        results.push_back(input_.aliases.of(index_.op(reader.op).results[0]));
      }
    }
    return results;
  }

  /// What a value is computed from by ops of one operand: x of exp(x), of x * x.
  std::int32_t core_of(std::int32_t value) const {
    while (true) {
      value = input_.aliases.of(value);
      const std::int32_t producer = index_.producer[value];
      if (producer == no_op || index_.rule(producer).work != Work::elementwise) return value;
      std::int32_t source = no_value;
      for (std::int32_t v : index_.op(producer).operands) {
        if (v == no_value || index_.is_free(v)) continue;
        if (source != no_value && input_.aliases.of(v) != source) return value;
        source = input_.aliases.of(v);
      }
      if (source == no_value) return value;
      value = source;
    }
  }

  bool is_on_the_way(std::int32_t op) const {
    const Work work = index_.rule(op).work;
    const Op& o = index_.op(op);
    return (work == Work::elementwise || work == Work::view) && o.results.size() == 1 &&
           o.results[0] != no_value;
  }

  /// Whether an operand is computed in the kernel of a reduction of rows, and nobody needs it
  /// in memory.
  bool reads_rows(std::int32_t op) const {
    const auto& operands = index_.op(op).operands;
    return std::any_of(operands.begin(), operands.end(), [&](std::int32_t v) {
      if (v == no_value) return false;
      v = input_.aliases.of(v);
      if (!is_of_rows_[v] || input_.uses.must_store[v]) return false;
      const auto readers = in(input_.uses.readers, v);
      return std::all_of(readers.begin(), readers.end(), [&](const Reader& reader) {
        return takes_fused(input_, reader.op, reader.operand);
      });
    });
  }

  const FusionInput& input_;
  const ProgramIndex& index_;
  /// By value: its rows do not lie in one piece; it is computed from a reduction of rows.
  std::vector<bool> is_turned_, is_of_rows_;
  std::vector<bool> found_;
};

}  // namespace

std::vector<bool> row_reductions_of(const FusionInput& input) {
  return RowReductions(input).find();
}

}  // namespace autoshard
