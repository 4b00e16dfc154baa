/// Which elementwise ops and reductions run as one kernel that writes several results.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/fusions.h"

namespace autoshard {

/// By op: the first one of its kernel; other fusions are kernels of their own.
///
/// `Fusion::joint_loops`: an elementwise op that is stored and one that is computed from it,
/// or that reads something else of their size with it, are one kernel if they have as many
/// elements, run in one loop, and all else that the later one reads is there before the kernel
/// starts. Rows of reductions and matmuls are no part of it.
///
/// `Fusion::sibling_reductions`: reductions are one kernel if they are stored, run in one
/// loop, reduce the same dims of equal shapes, read something in common from memory, and
/// equally many reductions are on the longest way to each, so that none waits for another.
///
/// `Fusion::reduced_as_written`: an elementwise op that is stored and a reduction of as many
/// elements that reads it, of other dims than the last one, are one kernel, if all else that
/// the reduction reads is made by no later kernel.
///
/// Example: Adam's two moments and the parameter that is computed from them are one kernel,
/// which reads the gradient once. The sums of x and of x * x over its rows, mean and variance
/// of a batch norm, are one; the sum of (x - mean)^2 is another. If x is what a relu stores,
/// the first two are in its kernel.
std::vector<std::int32_t> joint_kernels_of(const ProgramIndex& index, const Fusions& fusions,
                                           const FusionReads& reads, const Fusion& rules);

}  // namespace autoshard
