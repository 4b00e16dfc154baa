/// One round of the search under a memory limit, on what presolve has left.
#pragma once

#include "solver/limited_state.h"

namespace autoshard::solver {

/// Searches the network that is left from two sides: a dual bound with prices of memory, and
/// walks that those prices lead. True: options were ruled out and removed, so that presolve
/// and another round follow; false: the search has ended, and `state.solution` says how.
bool search_stage(LimitedState& state);

}  // namespace autoshard::solver
