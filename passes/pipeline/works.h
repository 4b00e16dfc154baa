/// What each stage does for a micro-batch.
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/body.h"

namespace autoshard::pipeline {

/// Where an op is made.
struct Place {
  std::int32_t op, stage, level;
};

/// The ops of a micro-batch that agree in stage and level.
struct StageWork {
  std::int32_t stage, level;
  double seconds = 0;
  /// Those of ops for which no other stage waits.
  double deferred_seconds = 0;
  /// Numbers of the works that it reads, ascending.
  std::vector<std::int32_t> after;
};

/// By level, then by stage. `places`: of all ops that have some, by op, then by stage and
/// level; an op with several is made at each, and who reads it reads that of its own stage,
/// the last one that is there in time. `seconds`: of each op, with what is in its regions.
///
/// Example: an op of 1 s on stage 0, one of 2 s on stage 1 that reads it: two works of 1 and
/// 2 s, the second one after the first, of whose seconds none are deferred.
std::vector<StageWork> works_of(const Ops& ops, const Loop& loop,
                                const std::vector<Place>& places,
                                const std::vector<double>& seconds);

}  // namespace autoshard::pipeline
