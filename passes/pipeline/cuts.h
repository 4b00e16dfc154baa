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

/// The cut over which the fewest bytes go, of all in which no stage takes more seconds than
/// its limit; every stage has a unit. None: there is no such cut.
///
/// Example: units of 1, 1, 2, 2 seconds, cuts in front of them 9, 5, 1 bytes, 2 stages: limits
/// of 4 allow {1, 1 | 2, 2} and {1, 1, 2 | 2}, of which the second one sends less.
///
/// Takes time in proportion to units and stages.
std::optional<Cuts> cheapest_cuts(const std::vector<Unit>& units,
                                  const std::vector<double>& limits);

/// Least seconds of the slowest stage over all cuts; none if there are fewer units than
/// stages, or marks leave no cut. Exact.
std::optional<double> least_slowest_seconds(const std::vector<Unit>& units,
                                            std::int32_t stages);

/// Limits for the parts of a line that stages take in turns, part n on stage n % `stages`: as
/// many for each turn as make the least when added up, within 1 %. None: as above.
///
/// Where units do not fall equally to the parts, turns differ, so that stages do not.
///
/// Example: ten units of a second, 2 stages in 3 turns. With a limit of 2 for all, parts may
/// be {2, 2 | 2, 2 | 1, 1}, but also {2, 2 | 2, 1 | 2, 1}, of which stage 0 takes 6 seconds;
/// limits 1, 2, 2 leave each stage 5.
///
/// Takes time in proportion to units and turns. With marks all limits are equal.
std::optional<std::vector<double>> least_turns(const std::vector<Unit>& units,
                                               std::int32_t stages, std::int32_t turns);

/// The first unit, and those in front of which so few bytes cross that no more are needed to
/// cut a line into so many parts.
std::vector<std::int32_t> cheapest_places(const std::vector<Unit>& units, std::int32_t parts);

/// What lies from each of some units to the next one, as a unit.
std::vector<Unit> joined(const std::vector<Unit>& units,
                         const std::vector<std::int32_t>& begins);

}  // namespace autoshard::pipeline
