/// Whether a search goes on, and what is told of it meanwhile.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "planning/phases.h"

namespace autoshard::planning {

/// How far a search is.
struct SearchState {
  /// As `Phases` has it: "levels", "joint", ..
  std::string phase;
  /// Plans that were evaluated.
  std::int64_t plans = 0;
  /// Step of the fastest of them that fits; infinity: there is none.
  double best_seconds = std::numeric_limits<double>::infinity();
  /// Sizes of the axes of its mesh.
  std::vector<std::int64_t> best_mesh;
};

/// Told how far a search is, some times a second; false ends it, with the best plan so far.
/// What it throws, the search throws.
using Watcher = std::function<bool(const SearchState&)>;

/// Holds a search to its deadline and to its watcher. The thread that makes it tells the
/// watcher; the others only ask whether they go on.
class Watch {
 public:
  /// Whoever makes one keeps `phases` alive.
  Watch(Clock::time_point deadline, Watcher watcher, const Phases& phases)
      : deadline_(deadline), watcher_(std::move(watcher)), phases_(phases) {}

  /// Nothing more is tried then.
  bool is_over();

  /// A plan was evaluated, on a mesh of these sizes. By the thread that made the watch.
  void found(double seconds, bool fits, const std::vector<std::int64_t>& mesh);

 private:
  const Clock::time_point deadline_;
  const Watcher watcher_;
  const Phases& phases_;
  const std::thread::id owner_ = std::this_thread::get_id();
  std::atomic<bool> is_stopped_{false};
  Clock::time_point told_;
  SearchState state_;
};

}  // namespace autoshard::planning
