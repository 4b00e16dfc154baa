/// Solving without a memory limit, where cost is all that matters.
#pragma once

#include "solver/problem.h"
#include "solver/run.h"

namespace autoshard::solver {

/// Eliminates what can be eliminated exactly, passes messages for a bound, and searches
/// forests for choices.
Solution solve_unlimited(const Problem& problem, const Options& options, Run& run);

}  // namespace autoshard::solver
