/// Recursive programming: without any annotation, the plan of least step time that fits the
/// memory of a device.
///
/// The mesh is decided axis by axis, slowest links first: every level is one cost network of
/// the whole program in which each op may cut one of its factors along the axis or none, and
/// the costs contain what earlier levels cut. Then levels are decided again, alone and in
/// pairs, all others staying as they are, until nothing improves. Axes that are used alike
/// become one axis of the plan's mesh, on which all are decided together where that is small
/// enough.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/cluster.h"
#include "model/program.h"
#include "planning/plan.h"
#include "planning/plan_costs.h"
#include "planning/search_options.h"
#include "solver/problem.h"

namespace autoshard::planning {

/// The plan, on a mesh whose axes are groups of the program's.
struct RecursivePlan {
  Plan plan;
  Mesh mesh;
  /// The axes of the program's mesh that each axis of `mesh` is made of.
  std::vector<std::vector<int>> axis_groups;
  PlanCosts costs;
  /// What is held to the limit of memory: bytes of a device, or of one of a stage.
  double limited_bytes = 0;
  /// The price of memory that was given, or the one that led to it, in the unit of
  /// `mem_coeff`.
  double mem_coeff = 0;
  /// No plan of this program on `mesh` that fits takes less, if `bound_is_joint`; else no plan
  /// that differs from this one in one axis of `mesh` only. Of plans in which members of a
  /// class are cut alike. 0: nothing was proved.
  double lower_bound_seconds = 0;
  bool bound_is_joint = false;
  /// Classes of ops that were decided, of how many ops.
  std::int64_t op_classes = 0;
  /// Rounds of message passing of the search that found it, on all meshes: what it computed,
  /// alike on every machine.
  std::int64_t rounds = 0;
  /// (name, seconds)
  std::vector<std::pair<std::string, double>> phases;
  /// For planning the program again.
  std::shared_ptr<const KnownProgram> known;
};

/// Throws `InvalidProgram`, `InvalidCluster`, `Contradiction`, `DoesNotFit` or `GivenUp`.
RecursivePlan recursive_programming(const Program& program, const Cluster& cluster,
                                    const RecursiveOptions& options);

/// The plan of a program of which only pins have changed since `previous`, or operands that
/// are kept, or factors that may not be cut, on the same mesh and at the price of memory that
/// led to it: every axis is decided again, starting from `previous` and what is `known` from
/// it, for the same chip. None if that leads nowhere or does not fit.
std::optional<RecursivePlan> replan_near(const Program& program, const Cluster& cluster,
                                         const Plan& previous, const KnownProgram& known,
                                         double mem_coeff, const RecursiveOptions& options);

/// As `replan_near`; where there is none, what the whole search finds on this mesh. Throws as
/// `recursive_programming`.
RecursivePlan replan(const Program& program, const Cluster& cluster, const Plan& previous,
                     const KnownProgram& known, double mem_coeff,
                     const RecursiveOptions& options);

/// The network in seconds of all mesh axes together, without memory prices, nothing folded.
solver::Problem joint_network(const Program& program, const Cluster& cluster);

}  // namespace autoshard::planning
