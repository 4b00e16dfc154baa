#include <stdexcept>
#include <string>

#include "solver/limited.h"
#include "solver/problem.h"
#include "solver/run.h"
#include "solver/unlimited.h"

namespace autoshard::solver {
namespace {

void check_start(const Problem& problem, const Options& options) {
  if (!options.start) return;
  if (static_cast<int>(options.start->size()) != problem.nodes()) {
    throw std::invalid_argument("start: has " + std::to_string(options.start->size()) +
                                " entries, needs one for each of " +
                                std::to_string(problem.nodes()) + " nodes");
  }
  for (int i = 0; i < problem.nodes(); ++i) {
    if ((*options.start)[i] < 0 || (*options.start)[i] >= problem.option_count(i)) {
      throw std::invalid_argument(
          "start[" + std::to_string(i) + "]: is " + std::to_string((*options.start)[i]) +
          ", node has options 0.." + std::to_string(problem.option_count(i) - 1));
    }
  }
}

}  // namespace

Solution solve(const Problem& problem, const Options& options) {
  check(problem);
  check_start(problem, options);
  Run run(options);
  return problem.memory_limit ? solve_limited(problem, options, run)
                              : solve_unlimited(problem, options, run);
}

}  // namespace autoshard::solver
