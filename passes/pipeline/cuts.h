/// Where a line is cut into stages.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "pipeline/line.h"

namespace autoshard::pipeline {

/// What lies at one unit.
struct Unit {
  double seconds = 0;  ///< of all nodes at it
  double bytes = 0;    ///< that go over a cut in front of it
  Range range;         ///< of stages that it may be on
};

struct Cuts {
  /// The first unit of every stage but the first one.
  std::vector<std::int32_t> first_units;
  double slowest_seconds = 0;
  double bytes = 0;
};

/// The cut over which the fewest bytes go, of all in which no stage takes more than `limit`
/// seconds; every stage has a unit. None: there is no such cut.
///
/// Example: units of 1, 1, 2, 2 seconds, cuts in front of them 9, 5, 1 bytes, 2 stages: limit
/// 4 allows {1, 1 | 2, 2} and {1, 1, 2 | 2}, of which the second one sends less.
///
/// Takes time in proportion to units and stages.
std::optional<Cuts> cheapest_cuts(const std::vector<Unit>& units, std::int32_t stages,
                                  double limit);

/// Least seconds of the slowest stage over all cuts; none if there are fewer units than
/// stages, or marks leave no cut. Exact.
std::optional<double> least_slowest_seconds(const std::vector<Unit>& units,
                                            std::int32_t stages);

}  // namespace autoshard::pipeline
