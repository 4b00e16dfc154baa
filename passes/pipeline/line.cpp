#include "pipeline/line.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace autoshard::pipeline {

std::vector<Range> ranges_of(const Line& line, std::int32_t stages) {
  std::vector<Range> ranges(line.size(), {0, stages - 1});
  // Forwards a reader is not before its operand, on the way back not behind it.
  const auto each_edge = [&](std::int32_t node, auto&& visit) {
    for (const std::int32_t value : line.reads[node]) {
      const std::int32_t maker = line.values[value].maker;
      if (maker < 0 || line.is_forward[maker] != line.is_forward[node]) continue;
      if (line.is_forward[node]) {
        visit(ranges[maker], ranges[node]);
      } else {
        visit(ranges[node], ranges[maker]);
      }
    }
  };
  const auto keep = [&](Range& low, Range& high) {
    high.first = std::max(high.first, low.first);
    low.last = std::min(low.last, high.last);
  };
  for (std::int32_t node = 0; node < line.size(); ++node) {
    if (line.mark[node] >= 0) ranges[node] = {line.mark[node], line.mark[node]};
  }
  for (std::int32_t node = 0; node < line.size(); ++node) each_edge(node, keep);
  for (std::int32_t node = line.size(); node-- > 0;) each_edge(node, keep);
  return ranges;
}

namespace {

/// Bytes of forward values that are alive behind each place of `order`.
std::vector<double> alive(const Line& line, const std::vector<std::int32_t>& order,
                          const std::vector<std::int32_t>& place) {
  std::vector<double> change(order.size() + 1, 0.0);
  for (const Value& value : line.values) {
    if (value.maker < 0 || !line.is_forward[value.maker]) continue;
    std::int32_t last = place[value.maker];
    for (const std::int32_t reader : value.readers) {
      if (line.is_forward[reader]) last = std::max(last, place[reader]);
    }
    change[place[value.maker]] += value.bytes;
    change[last] -= value.bytes;
  }
  std::partial_sum(change.begin(), change.end(), change.begin());
  return change;
}

/// The unit of each forward node: of those between two units the first ones lie at the unit
/// before them, up to where the fewest bytes are alive.
void place_forward(const Line& line, const std::vector<Range>& ranges, Places& places) {
  std::vector<std::int32_t> order;
  for (std::int32_t node = 0; node < line.size(); ++node) {
    if (line.is_forward[node]) order.push_back(node);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return ranges[a].first < ranges[b].first;
  });
  std::vector<std::int32_t> place(line.size(), -1);
  for (std::size_t k = 0; k < order.size(); ++k) place[order[k]] = static_cast<int>(k);
  const std::vector<double> bytes = alive(line, order, place);
  std::size_t first = 0;  // behind the last unit
  for (std::size_t k = 0; k <= order.size(); ++k) {
    const bool is_end = k == order.size();
    if (!is_end && !line.is_unit[order[k]]) continue;
    const auto unit = static_cast<std::int32_t>(places.units.size());
    std::size_t best = first;  // the first one that lies at the unit behind
    if (is_end) {
      best = k;
    } else if (unit > 0) {
      for (std::size_t n = first; n <= k; ++n) {
        if (bytes[n - 1] < bytes[best - 1]) best = n;
      }
    }
    for (std::size_t n = first; n < k; ++n) {
      places.unit[order[n]] = n < best ? std::max(unit - 1, 0) : unit;
    }
    if (!is_end) {
      places.unit[order[k]] = unit;
      places.units.push_back(order[k]);
    }
    first = k + 1;
  }
}

/// Lets what reads nothing that a micro-batch makes elsewhere on its way lie at the first unit
/// that needs it, as labels that only the loss reads: nothing has to cross for it.
void place_free(const Line& line, Places& places) {
  std::vector<char> is_free(line.size(), 0);
  for (std::int32_t node = 0; node < line.size(); ++node) {
    if (!line.is_forward[node] || line.is_unit[node] || line.mark[node] >= 0) continue;
    is_free[node] =
        std::all_of(line.reads[node].begin(), line.reads[node].end(), [&](std::int32_t value) {
          const std::int32_t maker = line.values[value].maker;
          return maker < 0 || is_free[maker];
        });
  }
  for (std::int32_t node = line.size(); node-- > 0;) {
    if (!is_free[node]) continue;
    std::int32_t first = std::numeric_limits<std::int32_t>::max();
    for (const std::int32_t value : line.makes[node]) {
      for (const std::int32_t reader : line.values[value].readers) {
        if (line.is_forward[reader]) first = std::min(first, places.unit[reader]);
      }
    }
    if (first < static_cast<std::int32_t>(places.units.size())) {
      places.unit[node] = std::max(places.unit[node], first);
    }
  }
}

/// By value: the last unit at which it is made or read on the way forward; -1: nowhere.
std::vector<std::int32_t> last_units(const Line& line, const Places& places) {
  std::vector<std::int32_t> last(line.values.size(), -1);
  for (std::size_t v = 0; v < line.values.size(); ++v) {
    const Value& value = line.values[v];
    if (value.maker >= 0 && line.is_forward[value.maker]) last[v] = places.unit[value.maker];
    for (const std::int32_t reader : value.readers) {
      if (line.is_forward[reader]) last[v] = std::max(last[v], places.unit[reader]);
    }
  }
  return last;
}

}  // namespace

Places places_of(const Line& line, const std::vector<Range>& ranges) {
  Places places{std::vector<std::int32_t>(line.size(), -1), {}};
  place_forward(line, ranges, places);
  place_free(line, places);
  const std::vector<std::int32_t> last = last_units(line, places);
  const auto end = static_cast<std::int32_t>(places.units.size()) - 1;
  for (std::int32_t node = 0; node < line.size(); ++node) {
    if (line.is_forward[node]) continue;
    constexpr std::int32_t nowhere = std::numeric_limits<std::int32_t>::max();
    std::int32_t behind = nowhere, first = nowhere, most = -1;
    for (const std::int32_t v : line.reads[node]) {
      const std::int32_t maker = line.values[v].maker;
      if (maker >= 0 && !line.is_forward[maker]) behind = std::min(behind, places.unit[maker]);
      if (last[v] < 0) continue;
      first = std::min(first, last[v]);
      most = std::max(most, last[v]);
    }
    // What reads no cotangent comes where all that it reads is there.
    std::int32_t& unit = places.unit[node];
    unit = behind == nowhere ? (most < 0 ? end : most) : std::min(behind, first);
    // Where marks lead elsewhere, it lies among the units of the stages that it may be on.
    const auto before = [&](std::int32_t at) {
      return ranges[places.units[at]].last < ranges[node].first;
    };
    const auto beyond = [&](std::int32_t at) {
      return ranges[places.units[at]].first > ranges[node].last;
    };
    while (unit < end && before(unit)) ++unit;
    while (unit > 0 && beyond(unit)) --unit;
  }
  return places;
}

std::vector<double> crossing(const Line& line, const Places& places) {
  std::vector<double> change(places.units.size() + 1, 0.0);
  for (const Value& value : line.values) {
    const bool is_made = value.maker >= 0;
    if (!is_made && value.readers.empty()) continue;
    std::int32_t low = places.unit[is_made ? value.maker : value.readers[0]], high = low;
    for (const std::int32_t reader : value.readers) {
      low = std::min(low, places.unit[reader]);
      high = std::max(high, places.unit[reader]);
    }
    change[low + 1] += value.bytes;
    change[high + 1] -= value.bytes;
  }
  std::partial_sum(change.begin(), change.end(), change.begin());
  return change;
}

}  // namespace autoshard::pipeline
