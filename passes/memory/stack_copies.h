/// Copies of the stacks that loops read slices of, and of what comes in and leaves.
#pragma once

#include <vector>

#include "compilers/compiler.h"
#include "memory/buffer.h"
#include "memory/fused_program.h"
#include "memory/op_order.h"

namespace autoshard {

/// Buffers of copies that the compiler makes of whole stacks, listed under the stack:
///
///   Layout::converted_stacks   A loop that reads its slice of a stack only to convert it to a
///                              narrower type has the whole stack converted before the first
///                              such loop, until the last one ends. So do scans over layers
///                              with parameters in float32 and arithmetic in bfloat16.
///   Layout::row_major_stacks   Loops stack values as kernels make them, and take stacks row
///                              by row: each that lies otherwise is written once more behind
///                              the loop, one after the other; the largest is counted.
///
/// Example: a float32 stack of 64 MiB of which a loop at [10, 90) only reads slices in
/// bfloat16: a buffer of 32 MiB at [10, 90).
std::vector<Buffer> stack_copies(const FusedProgram& fused, const OpOrder& order,
                                 const Layout& rules);

/// Buffers of what lies in another order than its argument or result, which lie row by row
/// (`Layout::ordered_batches`): of an argument from the first op to the last one that reads it
/// so, of a result from where it is made to the last one that reads it; of none that is
/// written over the other.
///
/// Example: scores of 64 MiB that leave the program are made at 5 in an order of their own,
/// and read at 8: a buffer of 64 MiB at [5, 9) beside that of the result.
std::vector<Buffer> end_copies(const FusedProgram& fused, const OpOrder& order);

}  // namespace autoshard
