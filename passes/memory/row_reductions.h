/// Reductions of rows that are computed inside the kernels which read them.
#pragma once

#include <vector>

#include "memory/fusion_rules.h"

namespace autoshard {

/// By op: whether it reduces the rows of its operand, that is the dim which is minor in
/// memory, of at most `Fusion::row_reductions` elements, and a kernel that holds whole rows
/// computes it:
///
/// - what is made of its result is joined with the operand, once: x - max(x), e / sum(e),
///   x * rsqrt(mean(x * x));
/// - or its operand is computed from such a reduction, by the same kernel.
///
/// Example: of softmax(x) = e / sum(e), e = exp(x - max(x)) both; of x / sum(y) none.
std::vector<bool> row_reductions_of(const FusionInput& input);

}  // namespace autoshard
