/// The clock, the limits and the trace of one call of `solve`.
#pragma once

#include <chrono>
#include <utility>
#include <vector>

#include "solver/problem.h"

namespace autoshard::solver {

class Run {
 public:
  explicit Run(const Options& options)
      : options_(options), start_(std::chrono::steady_clock::now()) {}

  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

  /// True if interrupt, time or iterations say so; `reason` receives which.
  bool should_stop(std::int64_t iteration, StopReason& reason) const {
    if (options_.interrupt && options_.interrupt->load(std::memory_order_relaxed)) {
      reason = StopReason::kInterrupted;
      return true;
    }
    if (iteration >= options_.max_iterations) {
      reason = StopReason::kIterationLimit;
      return true;
    }
    if (options_.seconds < kNotAllowed && seconds() >= options_.seconds) {
      reason = StopReason::kTimeLimit;
      return true;
    }
    return false;
  }

  /// About ten times a second.
  bool due() {
    const double now = seconds();
    if (now < next_report_) return false;
    next_report_ = now + 0.1;
    return true;
  }

  /// Adds a point if cost or bound is better than before; reports it.
  void trace(double cost, double lower_bound) {
    const TracePoint point{seconds(), cost, lower_bound};
    if (trace_.empty() || cost < trace_.back().cost ||
        lower_bound > trace_.back().lower_bound) {
      trace_.push_back(point);
    }
    if (options_.progress) options_.progress(point);
  }

  std::vector<TracePoint> take_trace() { return std::move(trace_); }

 private:
  const Options& options_;
  std::chrono::steady_clock::time_point start_;
  double next_report_ = 0.1;
  std::vector<TracePoint> trace_;
};

}  // namespace autoshard::solver
