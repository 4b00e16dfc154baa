#include "pipeline/cuts.h"

#include <algorithm>
#include <deque>
#include <limits>

namespace autoshard::pipeline {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();

std::vector<double> sums_of(const std::vector<Unit>& units) {
  std::vector<double> sums(units.size() + 1, 0.0);
  for (std::size_t k = 0; k < units.size(); ++k) sums[k + 1] = sums[k] + units[k].seconds;
  return sums;
}

}  // namespace

std::optional<Cuts> cheapest_cuts(const std::vector<Unit>& units, std::int32_t stages,
                                  double limit) {
  const auto count = static_cast<std::int32_t>(units.size());
  const std::vector<double> sums = sums_of(units);
  // Bytes of the best cut of the units before the index, and where its last stage begins.
  std::vector<double> before(count + 1, infinite), now;
  std::vector<std::vector<std::int32_t>> begins(stages);
  before[0] = 0;
  for (std::int32_t stage = 0; stage < stages; ++stage) {
    now.assign(count + 1, infinite);
    begins[stage].assign(count + 1, -1);
    std::deque<std::int32_t> best;  // begins, cheapest first
    std::int32_t earliest = 0;
    const auto cost = [&](std::int32_t begin) {
      return before[begin] + (stage > 0 ? units[begin].bytes : 0.0);
    };
    for (std::int32_t end = 1; end <= count; ++end) {
      const std::int32_t begin = end - 1;
      while (!best.empty() && cost(best.back()) >= cost(begin)) best.pop_back();
      best.push_back(begin);
      const Range& range = units[begin].range;
      if (range.first > stage || range.last < stage) earliest = end;
      while (earliest < end && sums[end] - sums[earliest] > limit) ++earliest;
      while (!best.empty() && best.front() < earliest) best.pop_front();
      if (best.empty() || cost(best.front()) == infinite) continue;
      now[end] = cost(best.front());
      begins[stage][end] = best.front();
    }
    before.swap(now);
  }
  if (before[count] == infinite) return std::nullopt;
  Cuts cuts{std::vector<std::int32_t>(stages - 1), 0, before[count]};
  std::int32_t end = count;
  for (std::int32_t stage = stages; stage-- > 0;) {
    const std::int32_t begin = begins[stage][end];
    cuts.slowest_seconds = std::max(cuts.slowest_seconds, sums[end] - sums[begin]);
    if (stage > 0) cuts.first_units[stage - 1] = begin;
    end = begin;
  }
  return cuts;
}

std::optional<double> least_slowest_seconds(const std::vector<Unit>& units,
                                            std::int32_t stages) {
  std::optional<Cuts> best = cheapest_cuts(units, stages, infinite);
  if (!best) return std::nullopt;
  // Between a limit that fails and the seconds of a real cut: what is found is a real cut's.
  double fails = 0;
  for (const Unit& unit : units) fails = std::max(fails, unit.seconds);
  fails *= 1 - 1e-12;
  while (fails < best->slowest_seconds * (1 - 1e-9)) {
    const double middle = (fails + best->slowest_seconds) / 2;
    if (const std::optional<Cuts> found = cheapest_cuts(units, stages, middle)) {
      best = found;
    } else {
      fails = middle;
    }
  }
  return best->slowest_seconds;
}

}  // namespace autoshard::pipeline
