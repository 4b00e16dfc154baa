#include "pipeline/cuts.h"

#include <algorithm>
#include <limits>

namespace autoshard::pipeline {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();

std::vector<double> sums_of(const std::vector<Unit>& units) {
  std::vector<double> sums(units.size() + 1, 0.0);
  for (std::size_t k = 0; k < units.size(); ++k) sums[k + 1] = sums[k] + units[k].seconds;
  return sums;
}

/// By stage: the units behind the last one of it, where it and those before it take no more
/// than their limits, and what is left no more than those of the others.
std::vector<Range> reachable_ends(const std::vector<double>& sums,
                                  const std::vector<double>& limits) {
  constexpr double rounding = 1 + 1e-9;
  const auto count = static_cast<std::int32_t>(sums.size()) - 1;
  std::vector<Range> ends(limits.size());
  double most = 0;
  std::int32_t last = 0;
  for (std::size_t stage = 0; stage < limits.size(); ++stage) {
    most += limits[stage] * rounding;
    while (last < count && sums[last + 1] <= most) ++last;
    ends[stage].last = last;
  }
  double left = 0;
  std::int32_t first = count;
  for (std::size_t stage = limits.size(); stage-- > 0;) {
    ends[stage].first = first;
    left += limits[stage] * rounding;
    while (first > 0 && sums[count] - sums[first - 1] <= left) --first;
  }
  return ends;
}

}  // namespace

std::optional<Cuts> cheapest_cuts(const std::vector<Unit>& units,
                                  const std::vector<double>& limits) {
  const auto stages = static_cast<std::int32_t>(limits.size());
  const auto count = static_cast<std::int32_t>(units.size());
  const std::vector<double> sums = sums_of(units);
  const std::vector<Range> ends = reachable_ends(sums, limits);
  // Bytes of the best cut of the units before the index, and where its last stage begins.
  std::vector<double> before(count + 1, infinite), now(count + 1, infinite);
  std::vector<std::vector<std::int32_t>> begins(stages);
  std::vector<std::int32_t> best(count + 1);  // begins, cheapest first
  before[0] = 0;
  for (std::int32_t stage = 0; stage < stages; ++stage) {
    const Range from = stage > 0 ? ends[stage - 1] : Range{0, 0}, to = ends[stage];
    begins[stage].assign(std::max(to.last - to.first + 1, 0), -1);
    std::int32_t first = 0, last = 0;  // of `best`
    std::int32_t earliest = from.first;
    const auto cost = [&](std::int32_t begin) {
      return before[begin] + (stage > 0 ? units[begin].bytes : 0.0);
    };
    for (std::int32_t end = from.first + 1; end <= to.last; ++end) {
      const std::int32_t begin = end - 1;
      if (begin <= from.last) {
        while (last > first && cost(best[last - 1]) >= cost(begin)) --last;
        best[last++] = begin;
      }
      const Range& range = units[begin].range;
      if (range.first > stage || range.last < stage) earliest = end;
      while (earliest < end && sums[end] - sums[earliest] > limits[stage]) ++earliest;
      while (last > first && best[first] < earliest) ++first;
      if (end < to.first || last == first || cost(best[first]) == infinite) continue;
      now[end] = cost(best[first]);
      begins[stage][end - to.first] = best[first];
    }
    for (std::int32_t end = from.first; end <= from.last; ++end) before[end] = infinite;
    before.swap(now);
  }
  if (before[count] == infinite) return std::nullopt;
  Cuts cuts{std::vector<std::int32_t>(stages - 1), 0, before[count]};
  std::int32_t end = count;
  for (std::int32_t stage = stages; stage-- > 0;) {
    const std::int32_t begin = begins[stage][end - ends[stage].first];
    cuts.slowest_seconds = std::max(cuts.slowest_seconds, sums[end] - sums[begin]);
    if (stage > 0) cuts.first_units[stage - 1] = begin;
    end = begin;
  }
  return cuts;
}

std::optional<double> least_slowest_seconds(const std::vector<Unit>& units,
                                            std::int32_t stages) {
  const auto within = [&](double limit) {
    return cheapest_cuts(units, std::vector<double>(stages, limit));
  };
  std::optional<Cuts> best = within(infinite);
  if (!best) return std::nullopt;
  // Between a limit that fails and the seconds of a real cut: what is found is a real cut's.
  double fails = 0;
  for (const Unit& unit : units) fails = std::max(fails, unit.seconds);
  fails *= 1 - 1e-12;
  while (fails < best->slowest_seconds * (1 - 1e-9)) {
    const double middle = (fails + best->slowest_seconds) / 2;
    if (const std::optional<Cuts> found = within(middle)) {
      best = found;
    } else {
      fails = middle;
    }
  }
  return best->slowest_seconds;
}

namespace {

/// What stages do in a turn in which no part takes more than some limit, by its first unit.
struct Turn {
  std::int32_t end = 0;  ///< the unit behind the last one that it may have
  double slowest = 0;    ///< seconds of its slowest part

  Turn then(const Turn& next) const { return {next.end, std::max(slowest, next.slowest)}; }
};

/// By first unit: what `stages` parts may have.
std::vector<Turn> turns_within(const std::vector<double>& sums, std::int32_t stages,
                               double limit) {
  const std::size_t count = sums.size();
  std::vector<Turn> some(count), turns(count);
  std::int32_t end = 0;
  for (std::size_t unit = 0; unit < count; ++unit) {
    turns[unit].end = static_cast<std::int32_t>(unit);
    end = std::max(end, turns[unit].end);
    while (end + 1 < static_cast<std::int32_t>(count) && sums[end + 1] - sums[unit] <= limit) {
      ++end;
    }
    some[unit] = {end, sums[end] - sums[unit]};
  }
  for (std::int32_t left = stages; left > 0; left /= 2) {  // `some` has parts in powers of two
    if (left % 2 != 0) {
      for (Turn& turn : turns) turn = turn.then(some[turn.end]);
    }
    std::vector<Turn> twice = some;
    for (Turn& turn : twice) turn = turn.then(some[turn.end]);
    some.swap(twice);
  }
  return turns;
}

/// Seconds of the slowest part of each turn, one after the other, that add up to the least.
///
/// Of equal sums even ones are taken, and those with less in the first turn, in which stages
/// wait for each other. Empty: none of the choices reach the end.
std::vector<double> least_sum(const std::vector<std::vector<Turn>>& choices, std::size_t count,
                              std::int32_t turns, double mean) {
  constexpr double uneven = 0.05, late = 1e-3;  // of what a turn takes
  std::vector<double> behind(count + 1, infinite), now;
  behind[count] = 0;
  std::vector<std::vector<const Turn*>> best(turns);
  for (std::int32_t turn = turns; turn-- > 0;) {
    now.assign(count + 1, infinite);
    best[turn].assign(count + 1, nullptr);
    for (const std::vector<Turn>& choice : choices) {
      for (std::size_t begin = 0; begin < count; ++begin) {
        const Turn& one = choice[begin];
        const double dearer = uneven * one.slowest / mean + (turn == 0 ? late : 0.0);
        const double sum = one.slowest * (1 + dearer) + behind[one.end];
        if (sum < now[begin]) now[begin] = sum, best[turn][begin] = &one;
      }
    }
    behind.swap(now);
  }
  std::vector<double> found;
  std::int32_t unit = 0;
  for (std::int32_t turn = 0; turn < turns; ++turn) {
    const Turn* one = best[turn][unit];
    if (one == nullptr) return {};
    found.push_back(one->slowest);
    unit = one->end;
  }
  return found;
}

}  // namespace

std::optional<std::vector<double>> least_turns(const std::vector<Unit>& units,
                                               std::int32_t stages, std::int32_t turns) {
  const std::int32_t parts = stages * turns;
  const std::optional<double> least = least_slowest_seconds(units, parts);
  if (!least) return std::nullopt;
  std::vector<double> equal(parts, *least);
  const auto is_marked = [&](const Unit& unit) {
    return unit.range.first > 0 || unit.range.last < parts - 1;
  };
  const std::vector<double> sums = sums_of(units);
  const double mean = sums.back() / parts;
  if (turns == 1 || mean == 0 || std::any_of(units.begin(), units.end(), is_marked)) {
    return equal;
  }
  constexpr double least_part = 0.1, most_part = 2.5;  // of the mean of all parts
  constexpr double step = 1.01;
  std::vector<std::vector<Turn>> choices;
  const double most = std::max(most_part * mean, *least) * step;
  for (double limit = least_part * mean; limit < most; limit *= step) {
    choices.push_back(turns_within(sums, stages, limit));
  }
  std::vector<double> limits;
  double sum = 0;
  for (const double slowest : least_sum(choices, units.size(), turns, mean)) {
    limits.insert(limits.end(), stages, slowest * (1 + 1e-9));
    sum += slowest;
  }
  const bool is_less = !limits.empty() && sum < *least * turns * (1 - 1e-6);
  return is_less && cheapest_cuts(units, limits) ? limits : equal;
}

std::vector<std::int32_t> cheapest_places(const std::vector<Unit>& units, std::int32_t parts) {
  std::vector<std::int32_t> begins(units.size());
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    begins[unit] = static_cast<std::int32_t>(unit);
  }
  if (units.size() <= static_cast<std::size_t>(parts)) return begins;
  std::vector<double> bytes;
  for (std::size_t unit = 1; unit < units.size(); ++unit) bytes.push_back(units[unit].bytes);
  std::nth_element(bytes.begin(), bytes.begin() + (parts - 1), bytes.end());
  const double most =
      parts > 1 ? *std::max_element(bytes.begin(), bytes.begin() + (parts - 1)) : 0.0;
  std::erase_if(begins,
                [&](std::int32_t unit) { return unit > 0 && units[unit].bytes > most; });
  return begins;
}

std::vector<Unit> joined(const std::vector<Unit>& units,
                         const std::vector<std::int32_t>& begins) {
  std::vector<Unit> found;
  for (std::size_t k = 0; k < begins.size(); ++k) {
    const std::size_t end = k + 1 < begins.size() ? begins[k + 1] : units.size();
    Unit one = units[begins[k]];
    for (std::size_t unit = begins[k] + 1; unit < end; ++unit) {
      one.seconds += units[unit].seconds;
      one.range.first = std::max(one.range.first, units[unit].range.first);
      one.range.last = std::min(one.range.last, units[unit].range.last);
    }
    found.push_back(one);
  }
  return found;
}

}  // namespace autoshard::pipeline
