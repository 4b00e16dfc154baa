/// Copies of the stacks that loops read slices of.
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

}  // namespace autoshard
