/// Memory of a plan: what it takes besides the buffers of its values, and the peak of both.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/buffer.h"
#include "memory/peak.h"
#include "planning/assignment.h"

namespace autoshard::planning {

/// What lives besides the values as they are held: copies that are more than a slice of their
/// source, what ops read or write otherwise, what collectives make for fusions, operands of
/// matmuls in loops, what loops read in every trip and is gathered before them, and copies of
/// arguments whose next values are gathered.
///
/// Example: a weight of 8 MiB that is held in 4 parts and read whole by the op at point 7,
/// where gathers are not hidden: 8 MiB at [7, 8).
std::vector<Transient> transients_of(const ProgramOnMesh& on, const Assignment& assignment);

/// Bytes of a plan at its worst program point, when value v is cut into `num_shards[v]`
/// blocks, with `besides` it. Reductions that the compiler delays
/// (planning/delayed_reduction.h) count as far as it lets them.
Peak peak_of(const ProgramOnMesh& on, const Assignment& assignment,
             const std::vector<double>& num_shards,
             const std::vector<Transient>& besides = {});

/// By value: into how many blocks the assignment cuts it. Free values: 1.
std::vector<double> shards_by_value(const ProgramOnMesh& on, const Assignment& assignment);

}  // namespace autoshard::planning
