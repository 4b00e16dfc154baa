/// What a given plan costs, term by term: the report of a plan.
#pragma once

#include <cstdint>
#include <vector>

#include "cost/collectives.h"
#include "cost/compute.h"
#include "memory/peak.h"
#include "planning/assignment.h"
#include "planning/plan.h"
#include "planning/plan_schedule.h"

namespace autoshard::planning {

/// One reshard of a plan and the collectives it is made of.
struct CostedMove {
  PlannedReshard move;
  std::vector<Step> steps;
  /// One a step, once.
  std::vector<double> step_seconds;
  /// One a step: a loop of the matmul scatters while it multiplies.
  std::vector<bool> is_ring = {};
  /// What the cores take more for it, once: slices, and what such loops take more.
  double compute_seconds = 0;
  /// Which of `Classes::copies` it makes; -1: none.
  std::int32_t copy = -1;
};

/// Every term of a plan's cost.
struct PlanCosts {
  /// One an op, once.
  std::vector<Compute> ops;
  /// Reshards, halos (place `halo`), and shared copies before their readers.
  std::vector<CostedMove> moves;
  double compute_seconds = 0;
  double communication_seconds = 0;
  /// compute + communication - min(overlap * communication, compute)
  double step_seconds = 0;
  /// The same step with what the compiler hides hidden, whatever `Cluster::overlap` is.
  PlanSchedule schedule;
  /// What each device sends.
  double sent_bytes = 0;
  Peak peak;
  /// Bytes that live at each program point, without the copies that reshards make.
  std::vector<double> live_bytes;
  /// What lives besides, as planning/transients.h has it.
  std::vector<double> transient_bytes;
};

/// Adds up what `plan` costs; the network of a search (planning/seconds.h) charges the same.
/// `assignment` says the same as the plan, and how copies are held besides.
PlanCosts costs_of(const ProgramOnMesh& on, const Assignment& assignment, const Plan& plan);

}  // namespace autoshard::planning
