/// A plan by numbers, as it crosses to Python: each distinct sharding once, everything else
/// refers to it; what there are thousands of, in columns.
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
#include "planning/recursive_programming.h"

namespace autoshard::planning {

/// The axes of each dim.
using AxisNumbers = std::vector<std::vector<std::int32_t>>;
/// Rows of `shardings`, of operands and of results; -1: rank 0.
using StrategyRow = std::pair<std::vector<std::int32_t>, std::vector<std::int32_t>>;

/// How a plan cuts values and ops.
struct CutTable {
  /// Distinct ones, in the order in which they were first seen.
  std::vector<AxisNumbers> shardings;
  std::vector<std::int32_t> value_sharding;
  /// Distinct ones.
  std::vector<StrategyRow> strategies;
  std::vector<std::int32_t> op_strategy;
};

/// The fields of `PlannedReshard`, one row each; `from` and `to` are rows of
/// `CutTable::shardings`.
struct ReshardTable {
  std::vector<PlannedReshard::Place> place;
  std::vector<std::int32_t> index, position, value, from, to;
  std::vector<AxisMask> partial;
  std::vector<double> bytes;
  std::vector<std::int32_t> collectives;
  std::vector<double> trips;
};

/// The collectives of all reshards, in their order.
struct CollectiveTable {
  /// Row of `ReshardTable`.
  std::vector<std::int32_t> reshard;
  std::vector<CollectiveKind> kind;
  std::vector<AxisMask> axes;
  std::vector<std::int64_t> participants;
  std::vector<double> held_bytes;
  /// Seconds of one run.
  std::vector<double> seconds;
  /// As `PlanSchedule`: of all runs, and of one.
  std::vector<double> exposed_seconds, slack_seconds;
};

struct PlanTable {
  CutTable cuts;
  ReshardTable reshards;
  double resharded_bytes = 0, objective = 0, lower_bound = 0;
  int levels = 1;

  // What follows is of plans with costs; else it is empty.

  CollectiveTable collectives;
  std::vector<std::vector<int>> axis_groups;
  double step_seconds = 0, compute_seconds = 0, communication_seconds = 0;
  double scheduled_seconds = 0, all_hidden_seconds = 0;
  Peak peak;
  double limited_bytes = 0;
  double mem_coeff = 0, lower_bound_seconds = 0;
  bool bound_is_joint = false;
  std::int64_t op_classes = 0, rounds = 0;
  std::vector<std::pair<std::string, double>> phases;
  /// One an op, once.
  std::vector<double> op_seconds, op_flops, op_bytes, op_packed_bytes;
  /// To start again from.
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const KnownProgram> known;
  /// What the program keeps in memory.
  std::shared_ptr<const ProgramMemory> memory;
  /// While each op runs.
  std::vector<double> live_bytes;
  /// What lives besides the values (planning/transients.h), as they do.
  std::vector<double> transient_bytes;
};

PlanTable table_of(const Program& program, const Plan& plan);
PlanTable table_of(const Program& program, RecursivePlan found);

/// What the plan of these cuts costs. Throws `InvalidProgram` if they are none of the
/// program, with the number of the op behind "at op". `memory`: what the program keeps, if
/// that is known.
PlanTable estimate_table(const Program& program, const Cluster& cluster, const CutTable& cuts,
                         std::shared_ptr<const ProgramMemory> memory = nullptr);

/// `replan_near` and `replan` from a table, also from one of `estimate_table`, of which
/// nothing is known but the plan. `price` of memory is where it begins; unset: that of
/// `previous`. Throws `std::invalid_argument` if the table has no costs, `InvalidProgram` if
/// it is another program's.
std::optional<PlanTable> replan_near_table(const Program& program, const Cluster& cluster,
                                           const PlanTable& previous,
                                           std::optional<double> price,
                                           const RecursiveOptions& options);
PlanTable replan_table(const Program& program, const Cluster& cluster,
                       const PlanTable& previous, std::optional<double> price,
                       const RecursiveOptions& options);

}  // namespace autoshard::planning
