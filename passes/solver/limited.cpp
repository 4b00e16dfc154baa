#include "solver/limited.h"

#include <string>
#include <utility>

#include "solver/limited_stage.h"
#include "solver/limited_state.h"
#include "solver/presolve.h"

namespace autoshard::solver {

Solution solve_limited(const Problem& problem, const Options& options, Run& run) {
  LimitedState state(problem, options, run);
  if (options.start) state.take_start();
  bool more = true;
  while (more) {
    if (!presolve(state.reduction)) {
      state.finish_exhausted();
      break;
    }
    more = search_stage(state);
  }
  Solution& solution = state.solution;
  if (solution.choice.empty() && solution.diagnosis.empty()) {
    solution.diagnosis = "no choice within the memory limit was found; the fullest point is " +
                         std::to_string(state.fullest_point);
  }
  solution.trace = run.take_trace();
  solution.seconds = run.seconds();
  solution.iterations = state.epoch;
  return std::move(solution);
}

}  // namespace autoshard::solver
