/// In which order the dims of values lie in memory, and what is copied into another order.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "compilers/compiler.h"
#include "memory/aliases.h"
#include "memory/program_index.h"

namespace autoshard {

struct Layouts {
  /// By value: a dynamic update slice writes it, and the update does not lie row by row.
  std::vector<bool> is_transposed;
  /// Values that are copies of others in the order of what is read beside them.
  std::vector<std::int32_t> copies;
  /// With `Layout::ordered_batches`: results of the program that are made in another order
  /// than row by row, and by argument the ops that read it in such an order.
  std::vector<std::int32_t> copied_results;
  std::map<std::int32_t, std::vector<std::int32_t>> copied_arguments;
};

/// Follows the order of dims from arguments, which lie row by row, through views and
/// elementwise ops. Where such an op reads values in different orders, the younger one is
/// copied, where matmuls write row by row (`Layout::row_major_matmuls`): the first op that
/// works on the younger value makes that copy; that is what transposes cost. Others write any
/// order.
///
/// Example: in `w + transpose(dot(x, y))`, w an argument, the product is younger and lies in
/// the other order.
Layouts layouts_of(const ProgramIndex& index, const Aliases& aliases, const Layout& layout);

}  // namespace autoshard
