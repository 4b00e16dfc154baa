/// One schedule from a rule: each stage takes the best of what it can start.
///
/// The k-th time that a work is done it is done for micro-batch k. Works of one name on a
/// stage are done in the order of their rank; among the next ones of each name a stage takes
/// what it can start first.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

namespace autoshard::pipeline {

/// A piece of work that is done once for every micro-batch.
struct ListWork {
  std::int32_t stage = 0;
  std::int32_t name = 0;  ///< of those of its stage
  std::int32_t rank = 0;  ///< smaller ones are done first, of what can start at the same time
  double seconds = 0;
  /// Earlier works that it reads, and the seconds on the way from each.
  std::vector<std::int32_t> after;
  std::vector<double> ways;
  std::int32_t ahead = 0, kept = 0;
  bool is_deferred = false;
};

/// How far each stage may run ahead, in micro-batches. Empty: no limit.
struct ListLimits {
  std::vector<std::int32_t> ahead, kept;
  /// Where they let no stage go on, all are raised by one until one can.
  bool are_raised = false;
};

/// A work, done for one micro-batch.
struct ListRun {
  std::int32_t work, micro_batch;
  double start, end;
};

struct ListOptions {
  std::int32_t micro_batches = 1;
  /// Works of one rank are done for so many micro-batches before the first of them is done for
  /// the next ones.
  std::int32_t together = 1;
  ListLimits limits;
  /// Deferred work is not begun if other work can start before this share of it is done.
  double patience = 0;
};

/// Runs by their start, then by stage. None: limits let no stage go on.
///
/// Expects works that are after earlier ones only, on stages below the number of limits.
std::optional<std::vector<ListRun>> list_schedule(const std::vector<ListWork>& works,
                                                  const ListOptions& options);

}  // namespace autoshard::pipeline
