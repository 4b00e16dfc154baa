/// What the gradients of maxima over windows take beside what they read and make.
#pragma once

#include <vector>

#include "memory/buffer.h"
#include "memory/fused_program.h"
#include "memory/op_order.h"

namespace autoshard {

/// Buffers of a compiler that scatters such a gradient to where the maxima are
/// (`Buffers::window_indices`): a number of 32 bits for each dim of each window, listed under
/// the gradient that is scattered, and the zeros it is added to, listed under the result. Both
/// wait for the forward pass alone: here they live from what the maxima are taken of until
/// they are read.
///
/// Example: x[4, 8] at point 3, of which windows of 2 are taken, and the gradient dy[4, 4] of
/// these scattered at point 9: 4 * 4 * 2 numbers and 4 * 8 zeros at [4, 10) and [4, 9).
std::vector<Buffer> window_maxima(const FusedProgram& fused, const OpOrder& order);

}  // namespace autoshard
