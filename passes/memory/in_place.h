/// Ops that write their result over an operand.
#pragma once

#include <vector>

#include "compilers/compiler.h"
#include "memory/buffer.h"
#include "memory/fused_program.h"
#include "memory/op_order.h"

namespace autoshard {

/// One operand of each root that computes in place ends where the result begins: an operand of
/// the same size that nobody reads after it and, for dynamic update slices and scatters, that
/// is updated. `live` are the live ranges by value without that.
///
/// Example: x lives at [2, 6), y = exp(x) runs at point 5: x lives at [2, 5).
void end_where_overwritten(const FusedProgram& fused, const OpOrder& order,
                           const Buffers& rules, std::vector<LiveRange>& live);

}  // namespace autoshard
