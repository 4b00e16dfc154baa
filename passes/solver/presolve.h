/// Exact presolve: rules that make a network smaller and keep its best choices.
///
///   tie        a node whose option follows from a neighbour's (each option of the neighbour
///              allows exactly one) is merged into it
///   restrict   options without an allowed partner on some edge are removed, until none is
///              left; with a memory limit, so are those too large even if all others are
///              smallest, and points that another one implies
///   fold       nodes with one option are added to their neighbours
///   dominate   option t goes if some s takes no more memory and is never dearer, whatever the
///              neighbours do:  cost(s) + sum_e max_c (T_e(s, c) - T_e(t, c)) <= cost(t)
///   eliminate  nodes with at most two neighbours are minimised out (without
///              memory limit only)
///
/// Each rule has a source file: presolve_ties.cpp, presolve_options.cpp, presolve_memory.cpp,
/// presolve_points.cpp, presolve_dominance.cpp, presolve_elimination.cpp.
#pragma once

#include "solver/reduction.h"

namespace autoshard::solver {

/// All that is exact with and without a memory limit, until nothing changes; false:
/// infeasible.
bool presolve(Reduction& reduction);

/// False: some node has no option left; `diagnosis` says which.
bool restrict_options(Reduction& reduction);
/// Folds nodes with one option into their neighbours.
void fold_single_options(Reduction& reduction);
/// Merges nodes into neighbours that determine them; true if any was.
bool merge_tied(Reduction& reduction);
/// Removes dominated options; true if any went.
bool remove_dominated(Reduction& reduction);
/// Removes options that cannot fit; false: not even the smallest ones fit together.
bool restrict_memory(Reduction& reduction, bool& any);
/// Minimises out nodes of degree <= 2, cheapest first, unless one costs more than
/// `largest_product` operations.
void eliminate(Reduction& reduction, double largest_product = 2e7);

/// Drops points that cannot be overfull unless a neighbouring one is; true if any went.
///
/// Point t is implied by point u if  sum_i max_s (bytes_i(s) at t - bytes_i(s) at u)
/// <= room(t) - room(u).  Only nodes whose memory changes between t and u count.
bool drop_implied_points(Reduction& reduction);

}  // namespace autoshard::solver
