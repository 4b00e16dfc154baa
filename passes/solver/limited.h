/// Problems with a memory limit.
#pragma once

#include "solver/problem.h"
#include "solver/run.h"

namespace autoshard::solver {

/// Presolve, then bound and search side by side, in epochs of equal work so that the answer
/// does not depend on the machine. When bound and best cost are close, options that cannot be
/// part of anything better are removed and presolve runs again.
///
/// Expects a checked problem with a memory limit.
Solution solve_limited(const Problem& problem, const Options& options, Run& run);

}  // namespace autoshard::solver
