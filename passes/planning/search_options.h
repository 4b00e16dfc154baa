/// What a search for a plan is asked, what it may know before, and how it fails.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "memory/peak.h"
#include "memory/program_memory.h"
#include "planning/classes.h"
#include "planning/level.h"
#include "planning/watch.h"

namespace autoshard::planning {

struct RecursiveOptions {
  /// What a byte of peak memory costs, in units of the time to read it once from memory;
  /// unset: the smallest price of those tried whose plan fits.
  std::optional<double> mem_coeff;
  /// Bytes that a device has for the program.
  double memory_limit;
  /// Stages of a pipeline that the program is cut into: the limit is that of one of them; see
  /// `of_a_stage`.
  int stages = 1;
  /// Rounds in which every level is decided again.
  int sweeps = 2;
  /// Whether pairs of levels are decided together.
  bool joint = true;
  /// Whether equal layers share one choice.
  bool fold = true;
  /// Whether axes of the program's mesh may become one axis of the plan's.
  bool merge_axes = true;
  /// Where memory has a price, climb once more from none, with plans that are searched to the
  /// end at every price. Takes two to three times as long.
  bool all_prices = false;
  /// Slower plans are of no use: prices are climbed no further where all are that slow.
  double most_seconds = std::numeric_limits<double>::infinity();
  /// Where a first plan without a price of memory takes longer, nothing more is tried; throws
  /// `GivenUp`.
  double give_up_seconds = std::numeric_limits<double>::infinity();
  /// Seconds after which nothing more is tried; a plan found within them depends on the
  /// machine only if the limit is reached.
  double time_limit = std::numeric_limits<double>::infinity();
  std::uint64_t seed = 0;
  /// Told how far the search is; it may end it.
  Watcher watcher;
};

/// No plan that was found fits the memory.
struct DoesNotFit : std::runtime_error {
  DoesNotFit(const std::string& what, double limit, Peak peak)
      : std::runtime_error(what), limit(limit), peak(std::move(peak)) {}
  double limit;
  /// Peak of the plan that needs least.
  Peak peak;
};

/// The first plan is slower than what the search was to give up at.
struct GivenUp : std::runtime_error {
  explicit GivenUp(double seconds)
      : std::runtime_error("the first plan is too slow"), seconds(seconds) {}
  double seconds;
};

/// What a search knows of a program that other pins hardly change.
struct KnownProgram {
  /// What it keeps in memory.
  std::shared_ptr<const ProgramMemory> memory;
  Classes classes;
  /// On the mesh of the plan, in terms of `classes`.
  LevelSolver::Messages messages;
};

}  // namespace autoshard::planning
