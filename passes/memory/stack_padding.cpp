#include "memory/stack_padding.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "memory/tile_padding.h"
#include "model/products.h"

namespace autoshard {
namespace {

/// Values that are one array, or arrays in one order of dims: a stack and its views on their
/// way into a loop, through it and behind it.
class Stacks {
 public:
  explicit Stacks(const ProgramIndex& index) : index_(index), parent_(index.num_values) {
    std::iota(parent_.begin(), parent_.end(), 0);
  }

  std::int32_t of(std::int32_t value) {
    while (parent_[value] != value) {
      parent_[value] = parent_[parent_[value]];
      value = parent_[value];
    }
    return value;
  }

  void join(std::int32_t one, std::int32_t other) {
    if (lies_freely(one) && lies_freely(other)) parent_[of(one)] = of(other);
  }

  bool lies_freely(std::int32_t value) const {
    return value != no_value && !index_.is_free(value) && !index_.is_argument(value);
  }

 private:
  const ProgramIndex& index_;
  std::vector<std::int32_t> parent_;
};

/// What the tiles add to a stack, in the order of dims that pads least. Those of which the
/// slice has one element fill no tiles; beside one other dim alone they are rows. The first
/// one of several others counts as if it were cut over all devices.
double padding_of(const std::vector<std::int64_t>& stack,
                  const std::vector<std::int64_t>& slice, double devices,
                  const Layout& layout) {
  if (stack.size() != slice.size()) return 1;
  std::vector<double> whole;
  double slices = 1;
  for (std::size_t d = 0; d < stack.size(); ++d) {
    if (slice[d] == 1) {
      slices *= static_cast<double>(stack[d]);
    } else {
      whole.push_back(static_cast<double>(stack[d]));
    }
  }
  if (slices == 1 || whole.empty()) return 1;
  if (whole.size() == 1) return padding_of_columns(slices, whole[0], layout);
  whole[0] = std::ceil(whole[0] / devices);
  return least_padding(whole, layout);
}

/// What gathers write and scatters add has rows of a table. One of a single dim fills the
/// columns of tiles, for each row lies in one place; so does it in what elementwise ops make
/// of it, or it is made of. Rows of several dims lie so in copies alone, for scatters.
class Rows {
 public:
  Rows(const ProgramIndex& index, const Layout& layout)
      : index_(index), layout_(layout), padding_(index.num_values, 1) {}

  std::vector<double> run() {
    for (std::int32_t i = 0; i < index_.num_ops; ++i) {
      const Op& op = index_.op(i);
      const Rule& rule = index_.rule(i);
      if (!has_indices(rule) || op.results.size() != 1) continue;
      if (rule.in_place_operand >= 0) {
        add(op.operands[2], rule.operands[2], rule.operands[0]);
      } else {
        add(op.results[0], rule.results[0], rule.operands[0]);
      }
    }
    while (!reached_.empty()) {
      const std::int32_t value = reached_.back();
      reached_.pop_back();
      if (index_.producer[value] != no_op) pass(index_.producer[value], value);
      for (std::int32_t op : index_.readers_of(value)) pass(op, value);
    }
    return std::move(padding_);
  }

 private:
  void reach(std::int32_t value, double padding) {
    if (value == no_value || index_.is_free(value) || index_.is_argument(value)) return;
    if (padding <= padding_[value]) return;
    padding_[value] = padding;
    reached_.push_back(value);
  }

  /// `rows` are of `table`, with which they share the dims of a row.
  void add(std::int32_t value, const RuleTensor& rows, const RuleTensor& table) {
    if (value == no_value) return;
    const auto& sizes = index_.dims(value);
    std::vector<std::int64_t> row = sizes;
    for (std::size_t d = 0; d < rows.dims.size(); ++d) {
      const bool is_of_row =
          std::any_of(rows.dims[d].begin(), rows.dims[d].end(),
                      [&](std::int32_t factor) { return has(table, factor); });
      if (!is_of_row) row[d] = 1;
    }
    const auto longer =
        std::count_if(row.begin(), row.end(), [](std::int64_t n) { return n > 1; });
    if (longer == 1) reach(value, padding_of(sizes, row, 1, layout_));
  }

  void pass(std::int32_t op, std::int32_t value) {
    if (index_.rule(op).work != Work::elementwise) return;
    const auto each = [&](std::int32_t v) {
      if (v != no_value && index_.dims(v) == index_.dims(value)) reach(v, padding_[value]);
    };
    for (std::int32_t v : index_.op(op).operands) each(v);
    for (std::int32_t v : index_.op(op).results) each(v);
  }

  const ProgramIndex& index_;
  const Layout& layout_;
  std::vector<double> padding_;
  std::vector<std::int32_t> reached_;
};

}  // namespace

std::vector<double> stack_padding_of(const ProgramIndex& index, const Aliases& aliases,
                                     const Layout& layout) {
  std::vector<double> padding(index.num_values, 1);
  if (layout.tile_columns == 0) return padding;
  const double devices = index.devices();
  Stacks stacks(index);
  for (std::size_t v = 0; v < index.num_values; ++v) {
    stacks.join(static_cast<std::int32_t>(v), aliases.alias[v]);
  }
  for (const Join& each : index.program.joins) stacks.join(each.source, each.target);
  for (const CarriedSlot& slot : index.slots) stacks.join(slot.carried, slot.yielded);
  std::vector<double> of_slices(index.num_values, 1);
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    const Rule& rule = index.rule(i);
    if (rule.work != Work::indexed || has_indices(rule)) continue;
    const std::int32_t stack = index.op(i).operands[0], made = index.op(i).results[0];
    const bool is_update = rule.in_place_operand >= 0;
    if (is_update) stacks.join(stack, made);
    const std::int32_t slice = is_update ? index.op(i).operands[1] : made;
    const bool is_in_loop = index.loops.of_op(i) != no_loop;
    if (!is_in_loop || !stacks.lies_freely(stack) || slice == no_value) continue;
    of_slices[stack] = std::max(
        of_slices[stack], padding_of(index.dims(stack), index.dims(slice), devices, layout));
  }
  for (std::size_t v = 0; v < index.num_values; ++v) {
    double& all = padding[stacks.of(static_cast<std::int32_t>(v))];
    all = std::max(all, of_slices[v]);
  }
  for (std::size_t v = 0; v < index.num_values; ++v) {
    padding[v] = padding[stacks.of(static_cast<std::int32_t>(v))];
  }
  const std::vector<double> rows = Rows(index, layout).run();
  for (std::size_t v = 0; v < index.num_values; ++v) {
    padding[v] = std::max(padding[v], rows[v]);
  }
  return padding;
}

}  // namespace autoshard
