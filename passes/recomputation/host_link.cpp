#include "recomputation/host_link.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace autoshard::recomputation {
namespace {

/// Transfers in the order in which they begin, of those that begin together the one that is
/// needed first: those before `first` are over, those before `coming` have begun.
class Queue {
 public:
  Queue(std::span<const double> start, std::span<const Transfer> transfers)
      : start_(start),
        transfers_(transfers),
        end_(static_cast<std::int32_t>(start.size()) - 1),
        order_(transfers.size()),
        rank_(transfers.size()),
        left_(transfers.size()) {
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(), [&](std::int32_t a, std::int32_t b) {
      const Transfer &one = transfers[a], &other = transfers[b];
      return std::pair(one.begins, one.needed) < std::pair(other.begins, other.needed);
    });
    for (std::size_t at = 0; at < order_.size(); ++at) {
      rank_[order_[at]] = at;
      left_[order_[at]] = transfers[order_[at]].seconds;
    }
    found_.over.assign(transfers.size(), end_);
  }

  Timetable run() {
    std::vector<std::int32_t> stops;
    std::vector<std::pair<std::int32_t, std::int32_t>> needed;
    for (std::size_t number = 0; number < transfers_.size(); ++number) {
      const Transfer& one = transfers_[number];
      if (one.begins < end_) stops.push_back(one.begins);
      if (one.needed >= end_) continue;
      stops.push_back(one.needed);
      needed.emplace_back(one.needed, static_cast<std::int32_t>(number));
    }
    std::sort(stops.begin(), stops.end());
    stops.erase(std::unique(stops.begin(), stops.end()), stops.end());
    std::sort(needed.begin(), needed.end());
    auto waiting = needed.begin();
    for (std::size_t at = 0; at < stops.size(); ++at) {
      const std::int32_t op = stops[at];
      while (coming_ < order_.size() && transfers_[order_[coming_]].begins <= op) ++coming_;
      for (; waiting != needed.end() && waiting->first == op; ++waiting) {
        while (rank_[waiting->second] >= first_ && first_ < coming_)
          found_.waited += finish(op);
      }
      send(op, at + 1 < stops.size() ? stops[at + 1] : end_);
    }
    while (first_ < order_.size()) found_.waited += finish(end_);
    return std::move(found_);
  }

 private:
  double finish(std::int32_t op) {
    const std::int32_t number = order_[first_++];
    found_.over[number] = op;
    return left_[number];
  }

  /// While ops run, from one to the one before another.
  void send(std::int32_t op, std::int32_t following) {
    double now = start_[op];
    while (first_ < coming_ && now + left_[order_[first_]] <= start_[following]) {
      now += left_[order_[first_]];
      const auto later = start_.subspan(op + 1);
      const auto over = std::lower_bound(later.begin(), later.end(), now);
      finish(op + 1 + static_cast<std::int32_t>(over - later.begin()));
    }
    if (first_ < coming_) left_[order_[first_]] -= start_[following] - now;
  }

  std::span<const double> start_;
  std::span<const Transfer> transfers_;
  const std::int32_t end_;
  std::vector<std::int32_t> order_;
  std::vector<std::size_t> rank_;  ///< place of each transfer in the order
  std::vector<double> left_;
  std::size_t first_ = 0, coming_ = 0;
  Timetable found_;
};

std::vector<double> sums(std::span<const double> seconds) {
  std::vector<double> found(seconds.size() + 1, 0.0);
  std::partial_sum(seconds.begin(), seconds.end(), found.begin() + 1);
  return found;
}

double of(std::span<const LoopSeconds> all, LoopOps loop) {
  double seconds = 0;
  for (const LoopSeconds& one : all) seconds += one.loop == loop ? one.seconds : 0.0;
  return seconds;
}

/// Transfers of a loop, by the places of its ops: seconds of all trips beside those of all
/// trips are as those of one beside those of one.
std::vector<Transfer> in_a_trip(std::span<const LoopTransfer> all, LoopOps loop) {
  std::vector<Transfer> found;
  for (const auto& [around, one] : all) {
    if (around == loop)
      found.push_back({one.seconds, one.begins - loop.first, one.needed - loop.first});
  }
  return found;
}

}  // namespace

Timetable timetable(std::span<const double> start, std::span<const Transfer> transfers) {
  return Queue(start, transfers).run();
}

HostLink::HostLink(std::vector<double> busy, std::vector<LoopOps> loops, double slowdown)
    : slowdown_(slowdown),
      busy_(std::move(busy)),
      start_(sums(busy_)),
      loops_(std::move(loops)) {
  std::stable_sort(loops_.begin(), loops_.end(), [](const LoopOps& a, const LoopOps& b) {
    return a.last - a.first < b.last - b.first;
  });
}

HostLink::Free HostLink::free(std::span<const LoopTransfer> moved,
                              std::span<const LoopSeconds> computed) const {
  if (moved.empty() && moved_.empty()) return {start_, 0.0};
  std::vector<double> free = busy_;
  double waited = 0;
  for (const LoopOps& loop : loops_) {
    std::vector<Transfer> own = in_a_trip(moved_, loop);
    for (const Transfer& one : in_a_trip(moved, loop)) own.push_back(one);
    if (own.empty()) continue;
    const std::span<double> ops = std::span(free).subspan(loop.first, loop.last - loop.first);
    std::vector<double> beside(ops.begin(), ops.end());
    if (!beside.empty()) beside.front() += of(computed, loop);
    double sent = 0;
    for (const Transfer& one : own) sent += one.seconds;
    const double computing = std::accumulate(beside.begin(), beside.end(), 0.0);
    const double waits = timetable(sums(beside), own).waited;
    waited += waits;
    const double share = computing > 0 ? std::max(0.0, 1 - (sent - waits) / computing) : 0.0;
    for (double& one : ops) one *= share;
  }
  return {sums(free), waited};
}

Timetable HostLink::table(std::span<const double> start, std::vector<Transfer> more) const {
  more.insert(more.end(), transfers_.begin(), transfers_.end());
  return timetable(start, more);
}

double HostLink::delay(double sent, double waited) const {
  return waited + (slowdown_ - 1) * std::max(0.0, sent_ + sent - waited);
}

double HostLink::delay() const {
  const Free now = free({}, {});
  return delay(0, now.waited + table(now.start, {}).waited);
}

}  // namespace autoshard::recomputation
