/// When sums of gradients run that only updates wait for.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "cost/collectives.h"
#include "model/sharding.h"

namespace autoshard::planning {

/// A program point behind the program.
inline constexpr std::int32_t never = std::numeric_limits<std::int32_t>::max();

/// A matmul whose sum only updates read.
struct DelayedSum {
  std::int32_t op = 0;
  /// Its program point in the order of the program.
  std::int32_t point = 0;
  /// When the last of its operands is made.
  std::int32_t newest = 0;
  /// Only equal sums are joined.
  CollectiveKind kind = CollectiveKind::all_reduce;
  AxisMask axes = 0;
  /// What is computed from it is sent once more.
  bool is_sent_on = false;
  /// Seconds of the matmul and of its sum, once.
  double seconds = 0, sum_seconds = 0;
  /// What a device makes, and what the sum leaves of it.
  double bytes = 0, summed_bytes = 0;
  /// When it runs and when its sum does: right behind what runs at this point.
  std::int32_t runs = -1, is_summed = -1;
  /// When its sum is done: what hides it runs before.
  std::int32_t done = -1;
  /// It takes longer than all that can run beside it, so that it begins before that.
  bool is_longer = false;
  /// What runs at this point waits for the sum.
  std::int32_t bound = never;
};

/// Anything else that runs, and what is sent for it.
struct OtherOp {
  std::int32_t point = 0;
  double seconds = 0;
  double sent_seconds = 0;
  /// When the last of what is sent is there; -1: from the start.
  std::int32_t sent_from = -1;
};

/// A kernel that writes constants. It waits for nothing, so that from the end all else comes
/// first that waits for a collective.
struct Fill {
  /// It runs before what runs at this point.
  std::int32_t bound = 0;
  double seconds = 0;
  /// Behind what runs at this point; `never`: it runs where it is read.
  std::int32_t runs = never;
};

/// Schedules one loop, or what is in none, from its end: one collective runs at a time, beside
/// ops that hide it. Sets `runs`, `is_summed`, `done` and `is_longer` of all `sums`, which are
/// in the order in which they run, as `others` are. Sums are joined while what they leave is
/// not more than `most_joined_bytes`.
///
/// Where a collective is waited for and nothing else is ready, `fills` run, first the one that
/// takes about as long.
void schedule_from_end(std::vector<DelayedSum*> sums, std::vector<OtherOp> others,
                       double most_joined_bytes, std::vector<Fill>& fills);

}  // namespace autoshard::planning
