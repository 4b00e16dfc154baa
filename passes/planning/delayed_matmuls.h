/// Batched matmuls that a compiler runs behind others.
#pragma once

#include <cstdint>
#include <vector>

#include "planning/assignment.h"
#include "planning/gradient_sums.h"

namespace autoshard::planning {

/// A value that a matmul reads at `point` in the order of the program, but runs behind what
/// runs at the point `runs`.
struct DelayedRead {
  std::int32_t value, point, runs;
};

/// What batched matmuls of a loop read late (`Schedule::late_batched_matmuls`).
///
/// They are read as they are in memory, and scheduling takes time for that: from the end, what
/// such a matmul reads is not ready when the matmul has been put in place, and another op that
/// is ready comes first. So one whose readers come later (the one with attention's transposed
/// probabilities) runs behind what the next batched matmul reads (the gradient of the scores).
/// Where gathers are hidden other ops come between; they are enough if nothing but gradients
/// waits for the matmul. What else only gradients read is not made before.
///
/// `is_waited_for`: by value, `leading_to_matmuls` without those of delayed sums. `there`: by
/// value, `there_after`.
std::vector<DelayedRead> delayed_batched_matmuls(const ProgramOnMesh& on,
                                                 const GradientSums& gradients,
                                                 std::int32_t loop, bool hides_gathers,
                                                 const std::vector<bool>& is_waited_for,
                                                 const std::vector<std::int32_t>& there);

}  // namespace autoshard::planning
