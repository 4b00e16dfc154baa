/// Plans that a search has found, and which of them is taken.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "memory/peak.h"
#include "planning/assignment.h"
#include "planning/mesh_search.h"
#include "planning/seconds.h"

namespace autoshard::planning {

/// A plan that was found.
struct Candidate {
  Stage* stage;
  InternedAssignment assignment;
  /// With and without the prices of memory.
  double objective, seconds;
  /// No plan on the mesh that fits takes less, if all axes were decided together.
  double lower_bound;
  bool is_joint = false;
  Peak peak;
  double coeff;
  Prices prices;

  std::size_t num_axes() const { return stage->groups.size(); }
};

inline bool by_objective(const Candidate& a, const Candidate& b) {
  return a.objective < b.objective;
}

inline bool by_seconds(const Candidate& a, const Candidate& b) {
  return a.seconds < b.seconds;
}

/// The cheapest plan on the fewest axes among those that cost up to `tolerance` more than the
/// cheapest; null if the list is empty.
template <typename Cost>
Candidate* with_fewest_axes(std::vector<Candidate>& list, const Cost& cost, double tolerance) {
  double least = std::numeric_limits<double>::infinity();
  for (const Candidate& c : list) least = std::min(least, cost(c));
  Candidate* best = nullptr;
  for (Candidate& c : list) {
    if (cost(c) > least + tolerance * std::abs(least)) continue;
    if (!best || c.num_axes() < best->num_axes() ||
        (c.num_axes() == best->num_axes() && cost(c) < cost(*best))) {
      best = &c;
    }
  }
  return best;
}

/// A plan on the fewest axes among those within `memory_limit` that cost up to `tolerance`
/// more than the cheapest; `price` is seconds for a byte of peak memory. Throws `DoesNotFit`.
Candidate fastest_that_fits(std::vector<Candidate>& pool, double memory_limit, double price,
                            double tolerance);

/// Whether whatever is cut along one of two axes is cut along the other next.
bool always_together(const Assignment& assignment, AxisIndex major, AxisIndex minor);

}  // namespace autoshard::planning
