/// Sharding propagation: from the pins of a program to a sharding for every value and a
/// strategy for every op, at the least resharding.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "model/program.h"
#include "planning/plan.h"
#include "solver/problem.h"

namespace autoshard::planning {

struct PropagationOptions {
  /// After they were decided one by one, all mesh axes are decided together if no op has more
  /// options than this.
  std::int64_t max_options = 160;
  /// Rounds over the axes after the first one.
  int sweeps = 2;
  std::uint64_t seed = 0;
};

/// Minimises, over all shardings that the pins allow,
///
///   sum of trips * (bytes + 1024 * collectives)       (see cost/reshard.h)
///     + 2^-20 * trips * (local bytes that ops read and write)
///
/// Every reader of a value pays for its own reshard here; the plan then counts one for
/// all readers that want the same sharding.
///
/// The last term only breaks ties: of plans that move the same bytes the one that splits
/// more work wins. Throws `InvalidProgram` or `Contradiction`.
Plan propagate(const Program& program, const PropagationOptions& options);

/// The network of all mesh axes if they are decided together, else of the first one.
solver::Problem first_network(const Program& program, const PropagationOptions& options);

}  // namespace autoshard::planning
