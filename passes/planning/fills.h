/// Constants that kernels write before something is done to them.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/buffer.h"
#include "planning/assignment.h"

namespace autoshard::planning {

/// Equal constants of one body, which one kernel writes, each as large as on a device.
struct Fills {
  std::int32_t loop = 0;
  double bytes = 0;
  /// Until when each is there, in order: where it is written over, or behind what reads it.
  std::vector<std::int32_t> points;
};

/// Those that ops of one body scatter over, parts of sums as each device makes them. Zeros
/// that elementwise kernels read as well are there for these, too, until the last one: the
/// scatter writes over a copy.
///
/// Example: a table of 8 MiB on a device, whose gradient is scattered at 3 and read at 7
/// beside `where(sum > 0, rsqrt(sum), 0)`: 8 MiB each, until 3 and 8.
std::vector<Fills> scattered_over(const ProgramOnMesh& on, const Assignment& assignment);

/// Zeros that elementwise kernels and the gradient of maxima over windows read, with
/// `Buffers::window_indices`: from the first to the last of these kernels. The gradient is
/// scattered over a copy.
///
/// Example: `max(x, 0)` of 8 MiB on a device at 3, windows of which are pooled, and
/// `select(x > 0, gradient, 0)` at 7: 8 MiB at [3, 8).
std::vector<Transient> zeros_beside_windows(const ProgramOnMesh& on,
                                            const Assignment& assignment);

/// Those that loops of one body begin with.
std::vector<Fills> looped_over(const ProgramOnMesh& on, const Assignment& assignment);

}  // namespace autoshard::planning
