#include "planning/watch.h"

namespace autoshard::planning {
namespace {

/// From one telling to the next.
constexpr std::chrono::milliseconds pause{50};

}  // namespace

bool Watch::is_over() {
  if (is_stopped_) return true;
  const Clock::time_point now = Clock::now();
  if (now >= deadline_) return true;
  if (watcher_ && std::this_thread::get_id() == owner_ && now - told_ >= pause) {
    told_ = now;
    state_.phase = phases_.name();
    if (!watcher_(state_)) is_stopped_ = true;
  }
  return is_stopped_;
}

void Watch::found(double seconds, bool fits, const std::vector<std::int64_t>& mesh) {
  ++state_.plans;
  if (!fits || seconds >= state_.best_seconds) return;
  state_.best_seconds = seconds;
  state_.best_mesh = mesh;
}

}  // namespace autoshard::planning
