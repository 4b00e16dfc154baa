/// Values that are one array in memory: views, constraints, and what loops carry.
#pragma once

#include <cstdint>
#include <vector>

#include "compilers/compiler.h"
#include "memory/program_index.h"

namespace autoshard {

/// Which values share a buffer whatever the plan is.
///
/// Example: of y = reshape(x), z = x under a sharding constraint, w = x + 1 the aliases of x,
/// y and z are x, that of w is w.
struct Aliases {
  /// By value: the first of those that it shares its buffer with. A bitcast is its operand, a
  /// constrained value the one before the constraint.
  std::vector<std::int32_t> alias;
  /// By op: it is a view that costs nothing.
  std::vector<bool> is_bitcast;
  /// By value that is its own alias: the one whose sharding counts for the buffer.
  std::vector<std::int32_t> listed_as;
  /// By value: the one before its constraint, or `no_value`.
  std::vector<std::int32_t> unconstrained;
  /// By slot: the alias of what its body yields.
  std::vector<std::int32_t> yielded;
  /// By slot: the yielded value is made in the body and yielded here only, so that it takes
  /// over the buffer when it is made; otherwise the carried value keeps that all the time.
  std::vector<bool> is_taken_over;

  std::int32_t of(std::int32_t value) const { return alias[value]; }
  /// The value that constraints were put on.
  std::int32_t before_constraints(std::int32_t value) const {
    while (unconstrained[value] != no_value) value = unconstrained[value];
    return value;
  }
};

/// Finds them. A view of as many bytes as its operand is that operand: reshapes and transposes
/// are a choice of layout, which compilers make so that they cost nothing. With
/// `Layout::row_major_arguments` one that a loop takes transposed is written once more.
///
/// @param is_written By op: views that are no such choice; empty: all are one.
Aliases aliases_of(const ProgramIndex& index, const Layout& layout,
                   const std::vector<bool>& is_written = {});

/// The value whose buffer is read when `value` is read in `loop`: behind a loop, a carried
/// value is what its body yielded last.
std::int32_t buffer_read(const ProgramIndex& index, const Aliases& aliases, std::int32_t value,
                         std::int32_t loop);

}  // namespace autoshard
