/// Reductions of gradients that a compiler leaves for the end of the step.
///
/// `Schedule::rings_in_order`: rings, matmuls that scatter their sums in a loop, are left.
/// What such a loop leaves is sent once more behind it, five of these transfers run at once,
/// and a loop needs two. So all but three rings whose sums only updates read run at the end,
/// and their operands wait.
///
/// `Schedule::late_sums`: compiled from the end, one collective runs at a time, beside kernels
/// that hide it. Nothing but an update reads the sum of a gradient, so from the end all these
/// sums come first, and what hides one is the matmul that makes another. In the order of the
/// program: the backward pass runs without them, and then sums and matmuls take turns. Until
/// then what the matmuls read, or the gradients that were made early, wait.
/// Beside sums that are scattered one by one what gradients of maxima over windows read is
/// computed early (memory/window_maxima.h).
/// docs/design/memory.md says what was compiled.
#pragma once

#include <vector>

#include "memory/buffer.h"
#include "planning/assignment.h"

namespace autoshard::planning {

/// What waits for delayed reductions of a plan, and how long.
///
/// Example: data parallel on GPUs, four gradients of 64 MiB, each all-reduced in 0.3 ms and
/// made in 0.8 ms. The last one that the backward pass makes is made where it was, the others
/// wait for its end: first for nobody, then each beside the sum of the one before.
std::vector<Transient> waiting_for_reductions(const ProgramOnMesh& on,
                                              const Assignment& assignment);

}  // namespace autoshard::planning
