/// When a plan's ops and collectives run: what a compiler hides, as a model has it.
#pragma once

#include <vector>

#include "planning/assignment.h"

namespace autoshard::planning {

struct PlanCosts;

/// One step of a plan on streams of compute and links.
///
///   all hidden <= as scheduled <= nothing hidden, the sum of compute and communication
struct PlanSchedule {
  double scheduled_seconds = 0;
  /// The busiest of the streams.
  double all_hidden_seconds = 0;
  /// By move of the plan and step of it: seconds of all runs in which nothing else is done,
  /// and how much longer one run could take until an op waited for it.
  std::vector<std::vector<double>> exposed, slack;
};

/// Schedules every loop and what is in none from its end (planning/stream_schedule.h).
///
/// - A collective waits for the op that makes its value, or for the collective before it; one
///   of arguments alone for nothing. So in the body of a loop: what the loop carries is there
///   when the trip begins, and what it yields is wanted when the trip ends.
/// - Whoever reads its value waits for it: an op, another collective, a loop.
/// - A loop is a task of its own: it takes the cores and all links that are used in it, so
///   that no collective goes on over the beginning or end of one.
/// - Collectives of kinds that the compiler does not hide (`Schedule::hides_gathers`,
///   `hides_sums`, `hides_exchanges`) keep the cores. In a ring of matmuls they run beside the
///   matmul, whoever the compiler is.
///
/// What is fused is taken to run where it stands. `costs` are those of the plan with this
/// assignment.
PlanSchedule schedule_of(const ProgramOnMesh& on, const PlanCosts& costs);

}  // namespace autoshard::planning
