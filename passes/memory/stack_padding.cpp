#include "memory/stack_padding.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "memory/tile_padding.h"

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
  double least = padding_of_matrix(whole[0], whole[1], layout);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      least = std::min(least, padding_of_matrix(whole[i], whole[j], layout));
    }
  }
  return least;
}

}  // namespace

std::vector<double> stack_padding_of(const ProgramIndex& index, const Aliases& aliases,
                                     const Layout& layout) {
  std::vector<double> padding(index.num_values, 1);
  if (layout.tile_columns == 0) return padding;
  const auto dims_of = [&](std::int32_t value) -> const std::vector<std::int64_t>& {
    return index.program.types[index.program.values[value].type].dims;
  };
  double devices = 1;
  for (std::int64_t size : index.program.mesh.axis_sizes) devices *= static_cast<double>(size);
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
    of_slices[stack] = std::max(of_slices[stack],
                                padding_of(dims_of(stack), dims_of(slice), devices, layout));
  }
  for (std::size_t v = 0; v < index.num_values; ++v) {
    double& all = padding[stacks.of(static_cast<std::int32_t>(v))];
    all = std::max(all, of_slices[v]);
  }
  for (std::size_t v = 0; v < index.num_values; ++v) {
    padding[v] = padding[stacks.of(static_cast<std::int32_t>(v))];
  }
  return padding;
}

}  // namespace autoshard
