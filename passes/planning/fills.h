/// Constants that kernels write before something is done to them.
#pragma once

#include <cstdint>
#include <vector>

#include "planning/assignment.h"

namespace autoshard::planning {

/// Equal constants of one body, which one kernel writes, each as large as on a device.
struct Fills {
  std::int32_t loop = 0;
  double bytes = 0;
  /// When each is read, in order.
  std::vector<std::int32_t> points;
};

/// Those that ops of one body scatter over, parts of sums as each device makes them.
std::vector<Fills> scattered_over(const ProgramOnMesh& on, const Assignment& assignment);

/// Those that loops of one body begin with.
std::vector<Fills> looped_over(const ProgramOnMesh& on, const Assignment& assignment);

}  // namespace autoshard::planning
