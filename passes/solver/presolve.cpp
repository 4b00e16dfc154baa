#include "solver/presolve.h"

namespace autoshard::solver {

bool presolve(Reduction& reduction) {
  bool any = true;
  while (any) {
    if (!restrict_options(reduction)) return false;
    fold_single_options(reduction);
    any = merge_tied(reduction);
    if (any && !restrict_options(reduction)) return false;
    any |= remove_dominated(reduction);
    fold_single_options(reduction);
    bool memory = false;
    if (!restrict_memory(reduction, memory)) return false;
    any |= memory;
    any |= drop_implied_points(reduction);
  }
  return true;
}

}  // namespace autoshard::solver
