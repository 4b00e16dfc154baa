/// Ops of a plan that are alike: of equal layers, cut alike, and as long.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/program.h"
#include "planning/plan_table.h"

namespace autoshard::planning {

/// Groups of ops that are alike, in the order of their first ops.
struct AlikeOps {
  /// For each op the number of its group.
  std::vector<std::int32_t> group_of;
  /// For each group its first op, how many it has, and how many ops before the first one stand
  /// in the same spot.
  std::vector<std::int32_t> first, count, occurrence;
};

/// What callers know of each op, by numbers of their own.
struct OpNumbers {
  /// What it does, and on what line and in what scope of any layer.
  std::span<const std::int32_t> kinds, places;
  /// Kind and place, and which layer; small numbers from 0 on.
  std::span<const std::int32_t> spots;
};

/// Ops are alike if they have one kind and place, one strategy, and as many seconds and runs.
///
/// Example: kinds {0, 1, 0, 1} and places {0, 0, 0, 0}, all cut alike: two groups of two.
///
/// Throws `std::invalid_argument` if the columns are not of one length, as those of plans
/// without costs.
AlikeOps alike_ops(const Program& program, const PlanTable& plan, const OpNumbers& ops);

}  // namespace autoshard::planning
