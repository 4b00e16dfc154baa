#include "planning/sum_schedule.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <queue>
#include <set>
#include <utility>

namespace autoshard::planning {
namespace {

/// A collective whose readers are scheduled.
struct Sending {
  double seconds = 0;
  std::int32_t depth = 0, from = -1;
};

/// The schedule that is made, from its end to its beginning.
class FromTheEnd {
 public:
  FromTheEnd(std::vector<DelayedSum*> late, std::vector<OtherOp> others,
             double most_joined_bytes, std::vector<Fill>& fills)
      : late_(std::move(late)), others_(std::move(others)), fills_(fills) {
    double joined_bytes = 0;
    for (std::size_t i = 0; i < late_.size(); ++i) {
      const bool joins = i > 0 && late_[i]->kind == late_[i - 1]->kind &&
                         late_[i]->axes == late_[i - 1]->axes &&
                         late_[i]->bound == late_[i - 1]->bound &&
                         joined_bytes + late_[i]->summed_bytes <= most_joined_bytes;
      if (!joins) {
        groups_.emplace_back();
        joined_bytes = 0;
      }
      groups_.back().push_back(late_[i]);
      joined_bytes += late_[i]->summed_bytes;
      needed_.insert(late_[i]->newest);
    }
    depths_.reserve(others_.size());
    for (std::int32_t depth = 0; const OtherOp& other : others_) {
      if (other.sent_seconds > 0) ++depth;
      depths_.push_back(depth);
    }
  }

  void run() {
    while (num_done_ < late_.size() || may_fill()) {
      if (left_ <= 0) end_collective();
      if (!is_sending_) begin_collective();
      if (!is_sending_) {
        // Nothing is to be hidden. What is left is ready, others wait for what reads them.
        if (made_.empty()) {
          run_other();
        } else {
          run_late();
        }
        continue;
      }
      if (next_is_free() && (made_.empty() || depth_now() > depth_at(made_.top()->point))) {
        run_other();
        hides_ = true;
      } else if (!made_.empty()) {
        run_late();
      } else {
        fill();
        for (DelayedSum* late : summing_) late->is_longer = hides_;
        left_ = 0;
      }
    }
  }

 private:
  struct Younger {
    bool operator()(const DelayedSum* a, const DelayedSum* b) const {
      return a->point < b->point;
    }
  };

  /// A fill has no place yet, and there is something that may be waited for.
  bool may_fill() const { return num_filled_ < fills_.size() && !others_.empty(); }

  /// Fills run while a collective is waited for.
  void fill() {
    while (left_ > 0) {
      Fill* best = nullptr;
      for (Fill& one : fills_) {
        if (one.runs != never || one.bound <= now()) continue;
        const auto waste = [&](const Fill& f) { return std::abs(left_ - f.seconds); };
        if (best == nullptr || waste(one) < waste(*best)) best = &one;
      }
      if (best == nullptr) return;
      best->runs = now();
      left_ -= best->seconds;
      ++num_filled_;
    }
  }

  std::int32_t now() const { return others_.empty() ? 0 : others_.back().point; }
  std::int32_t depth_now() const { return depths_.empty() ? 0 : depths_.back(); }
  std::int32_t depth_at(std::int32_t point) const {
    const auto behind =
        std::upper_bound(others_.begin(), others_.end(), point,
                         [](std::int32_t p, const OtherOp& other) { return p < other.point; });
    return behind == others_.begin() ? 0 : depths_[behind - others_.begin() - 1];
  }
  /// All that reads what the last one makes is scheduled.
  bool next_is_free() const {
    return !others_.empty() && (needed_.empty() || others_.back().point > *needed_.rbegin());
  }

  void begin_collective() {
    const bool is_sum =
        !groups_.empty() && (others_.empty() || now() < groups_.back()[0]->bound) &&
        (sent_.empty() || depth_at(groups_.back().back()->point) >= sent_.front().depth);
    if (is_sum) {
      summing_ = std::move(groups_.back());
      groups_.pop_back();
      for (DelayedSum* late : summing_) {
        left_ += late->sum_seconds;
        late->done = now();
      }
    } else if (!sent_.empty()) {
      left_ += sent_.front().seconds;
      sending_ = sent_.front();
      sent_.pop();
    } else {
      return;
    }
    is_sending_ = true;
    hides_ = false;
  }
  void end_collective() {
    for (DelayedSum* late : summing_) {
      late->is_summed = std::max(now(), late->point);
      made_.push(late);
    }
    if (is_sending_ && summing_.empty()) needed_.erase(needed_.find(sending_.from));
    summing_.clear();
    is_sending_ = false;
    left_ = 0;
  }
  void run_other() {
    const OtherOp& other = others_.back();
    left_ -= other.seconds;
    if (other.sent_seconds > 0) {
      sent_.push({other.sent_seconds, depths_.back(), other.sent_from});
      needed_.insert(other.sent_from);
    }
    others_.pop_back();
    depths_.pop_back();
  }
  void run_late() {
    DelayedSum* late = made_.top();
    made_.pop();
    left_ -= late->seconds;
    late->runs = std::max(now(), late->point);
    needed_.erase(needed_.find(late->newest));
    ++num_done_;
  }

  std::vector<DelayedSum*> late_;
  std::vector<OtherOp> others_;
  std::vector<Fill>& fills_;
  std::size_t num_filled_ = 0;
  /// How many of the others wait for collectives, up to each.
  std::vector<std::int32_t> depths_;
  std::vector<std::vector<DelayedSum*>> groups_;
  /// Program points at which something is made that an unscheduled matmul or collective reads.
  std::multiset<std::int32_t> needed_;
  /// DelayedSum ops whose sums are scheduled.
  std::priority_queue<DelayedSum*, std::vector<DelayedSum*>, Younger> made_;
  std::queue<Sending> sent_;
  Sending sending_{};
  std::vector<DelayedSum*> summing_;
  bool is_sending_ = false;
  /// Ops of the backward pass run beside it.
  bool hides_ = false;
  /// Seconds of the collective that are not hidden yet.
  double left_ = 0;
  std::size_t num_done_ = 0;
};

}  // namespace

void schedule_from_end(std::vector<DelayedSum*> sums, std::vector<OtherOp> others,
                       double most_joined_bytes, std::vector<Fill>& fills) {
  FromTheEnd(std::move(sums), std::move(others), most_joined_bytes, fills).run();
}

}  // namespace autoshard::planning
