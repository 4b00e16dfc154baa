/// Into how many equal parts loops over layers are cut, and on which stages these are.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace autoshard::pipeline {

/// What a step does one after the other on its way forward, with its gradients.
struct Span {
  double seconds = 0;  ///< Of a step on one device; 0 or more.
  /// Numbers of equal parts into which a loop may be cut. Empty: ops that may be cut anywhere.
  std::vector<std::int32_t> parts;
};

/// Part n of a loop is on stage `first_stage` + n.
struct LoopShare {
  std::int32_t first_stage = 0, parts = 1;
};

/// The shares of the loops among `spans`, in their order; none: they do not fill the stages.
///
/// Of all in which the slowest stage takes at most `slack` times the least that it must, those
/// with the fewest parts.
///
/// Example: a loop of 8 s that may be cut into 1, 2 or 4, and 1 s of ops behind it. 2 stages:
/// {0, 2}, 5 s; 3 stages: {0, 2}, 4 s, with the ops on a stage of their own.
///
/// Expects `stages >= 1`, `slack >= 1` and numbers of parts of 1 or more; the binding checks
/// these. Pure function, safe to call from several threads.
///
/// Takes time in proportion to spans, and to stages and parts squared.
std::optional<std::vector<LoopShare>> loop_shares(const std::vector<Span>& spans,
                                                  std::int32_t stages, double slack);

}  // namespace autoshard::pipeline
