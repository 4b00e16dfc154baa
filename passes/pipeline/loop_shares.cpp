#include "pipeline/loop_shares.h"

#include <algorithm>
#include <limits>

namespace autoshard::pipeline {
namespace {

constexpr double not_found = std::numeric_limits<double>::infinity();

/// What the first spans may come to: how full the last stage is that they reach.
struct State {
  double seconds = not_found;
  std::int32_t from_stage = -1, from_parts = 0;
  LoopShare share;
};

/// Fills stages with spans in their order; no stage takes longer than `limit`.
class Filler {
 public:
  Filler(const std::vector<Span>& spans, std::int32_t stages, double limit)
      : spans_(spans), stages_(stages), limit_(limit) {
    for (const Span& span : spans) {
      const auto& parts = span.parts;
      if (!parts.empty()) most_parts_ += *std::max_element(parts.begin(), parts.end());
    }
  }

  std::optional<std::vector<LoopShare>> shares() {
    // Row 0 of a table is before the first stage, which is then as if full.
    tables_.assign(spans_.size() + 1, std::vector<State>((stages_ + 1) * (most_parts_ + 1)));
    tables_[0][0].seconds = limit_;
    for (std::size_t n = 0; n < spans_.size(); ++n) {
      for (std::int32_t stage = -1; stage < stages_; ++stage) {
        for (std::int32_t parts = 0; parts <= most_parts_; ++parts) {
          const double seconds = at(n, stage, parts).seconds;
          if (seconds == not_found) continue;
          if (spans_[n].parts.empty()) {
            spread(n, stage, parts, seconds);
          } else {
            for (const std::int32_t cut : spans_[n].parts) {
              begin_loop(n, stage, parts, seconds, cut);
            }
          }
        }
      }
    }
    for (std::int32_t parts = 0; parts <= most_parts_; ++parts) {
      if (at(spans_.size(), stages_ - 1, parts).seconds < not_found) return trace(parts);
    }
    return std::nullopt;
  }

 private:
  State& at(std::size_t n, std::int32_t stage, std::int32_t parts) {
    return tables_[n][(stage + 1) * (most_parts_ + 1) + parts];
  }

  void reach(std::size_t n, std::int32_t stage, std::int32_t parts, const State& state) {
    if (stage >= stages_ || state.seconds > limit_) return;
    State& best = at(n + 1, stage, parts);
    if (state.seconds < best.seconds) best = state;
  }

  /// Ops that go on in the stage that was reached, and fill `opened` more.
  void spread(std::size_t n, std::int32_t stage, std::int32_t parts, double seconds) {
    const double more = spans_[n].seconds;
    if (more <= 0) return reach(n, stage, parts, {seconds, stage, parts, {}});
    for (std::int32_t opened = stage < 0; stage + opened < stages_; ++opened) {
      const double full = limit_ - seconds + (opened - 1) * limit_;
      const double last = opened ? std::max(more - full, 0.0) : seconds + more;
      reach(n, stage + opened, parts, {last, stage, parts, {}});
    }
  }

  /// A loop in `cut` parts that begins on the stage that was reached, or on the next one.
  void begin_loop(std::size_t n, std::int32_t stage, std::int32_t parts, double seconds,
                  std::int32_t cut) {
    const double part = spans_[n].seconds / cut;
    if (part > limit_) return;
    reach(n, stage + cut, parts + cut, {part, stage, parts, {stage + 1, cut}});
    if (stage < 0 || seconds + part > limit_) return;
    const double last = cut == 1 ? seconds + part : part;
    reach(n, stage + cut - 1, parts + cut, {last, stage, parts, {stage, cut}});
  }

  std::vector<LoopShare> trace(std::int32_t parts) {
    std::vector<LoopShare> found;
    std::int32_t stage = stages_ - 1;
    for (std::size_t n = spans_.size(); n-- > 0;) {
      const State& state = at(n + 1, stage, parts);
      if (!spans_[n].parts.empty()) found.push_back(state.share);
      stage = state.from_stage, parts = state.from_parts;
    }
    std::reverse(found.begin(), found.end());
    return found;
  }

  const std::vector<Span>& spans_;
  std::int32_t stages_, most_parts_ = 0;
  double limit_;
  std::vector<std::vector<State>> tables_;
};

}  // namespace

std::optional<std::vector<LoopShare>> loop_shares(const std::vector<Span>& spans,
                                                  std::int32_t stages, double slack) {
  double works = 0;
  for (const Span& span : spans) works += span.seconds;
  works *= 1 + 1e-9;
  if (!Filler(spans, stages, works).shares()) return std::nullopt;
  double fails = works / stages * (1 - 1e-6);
  while (works > fails * (1 + 1e-6)) {
    const double middle = (fails + works) / 2;
    (Filler(spans, stages, middle).shares() ? works : fails) = middle;
  }
  return Filler(spans, stages, works * slack).shares();
}

}  // namespace autoshard::pipeline
