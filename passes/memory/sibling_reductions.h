/// Which reductions run as one kernel, since they take equally many elements in the same order
/// and none waits for another.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/fusions.h"

namespace autoshard {

/// By op: the first of the reductions with which it is one kernel; any other op is its own.
///
/// Reductions are one kernel if they are stored, run in one loop, reduce the same dims of
/// equal shapes, read something in common from memory, and equally many reductions are on the
/// longest way to each, so that none waits for another.
///
/// Example: the sums of x and of x * x over its rows, mean and variance of a batch norm, are
/// one; the sum of (x - mean)^2 is another.
std::vector<std::int32_t> sibling_reductions(const ProgramIndex& index, const Fusions& fusions,
                                             const FusionReads& reads);

}  // namespace autoshard
