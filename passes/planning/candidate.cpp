#include "planning/candidate.h"

#include <algorithm>

#include "planning/search_options.h"

namespace autoshard::planning {

Candidate fastest_that_fits(std::vector<Candidate>& pool, double memory_limit, double price,
                            double tolerance) {
  const auto cost = [&](const Candidate& c) {
    return c.peak.bytes <= memory_limit ? c.seconds + price * c.peak.bytes
                                        : std::numeric_limits<double>::infinity();
  };
  Candidate* best = with_fewest_axes(pool, cost, tolerance);
  if (best->peak.bytes > memory_limit) {
    const auto smallest = std::min_element(
        pool.begin(), pool.end(),
        [](const Candidate& a, const Candidate& b) { return a.peak.bytes < b.peak.bytes; });
    throw DoesNotFit("no plan was found that fits the memory of a device", memory_limit,
                     smallest->peak);
  }
  // What was proved at one price holds at all.
  for (const Candidate& other : pool) {
    if (other.stage != best->stage || !other.is_joint) continue;
    best->lower_bound = std::max(best->lower_bound, other.lower_bound);
    best->is_joint = true;
  }
  return *best;
}

bool always_together(const Assignment& assignment, AxisIndex major, AxisIndex minor) {
  const auto in_all = [&](const std::vector<AxisList>& lists) {
    return std::all_of(lists.begin(), lists.end(), [&](const AxisList& axes) {
      const auto at = std::find(axes.begin(), axes.end(), major);
      if (at == axes.end()) return std::find(axes.begin(), axes.end(), minor) == axes.end();
      return at + 1 != axes.end() && at[1] == minor;
    });
  };
  return std::all_of(assignment.shardings.begin(), assignment.shardings.end(),
                     [&](const Sharding& sharding) { return in_all(sharding.dims); }) &&
         std::all_of(assignment.ops.begin(), assignment.ops.end(), in_all);
}

}  // namespace autoshard::planning
