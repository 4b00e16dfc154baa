/// A plan: a sharding for every value, a strategy for every op, and what has to be moved.
#pragma once

#include <cstdint>
#include <vector>

#include "cost/reshard.h"
#include "model/program.h"
#include "planning/assignment.h"
#include "planning/classes.h"
#include "planning/costs.h"
#include "planning/options.h"

namespace autoshard::planning {

/// One change of sharding that a plan asks for.
struct PlannedReshard {
  enum class Place : std::uint8_t { operand, result, join, halo };
  Place place;
  /// Index of the op, or of the join.
  std::int32_t index;
  /// Which operand or result; 0 for joins.
  std::int32_t position;
  std::int32_t value;
  Sharding from, to;
  AxisMask partial;
  /// Once; multiply by `trips`.
  Reshard volume;
  double trips;
};

struct Plan {
  /// One a value.
  std::vector<Sharding> values;
  /// One an op: the axes that cut each of its factors.
  std::vector<FactorAxes> ops;
  std::vector<PlannedReshard> reshards;
  /// Sum over `reshards` of bytes times trips: what each device sends.
  double resharded_bytes = 0;
  /// Lower bound on the objective of the last network solved, and the objective reached.
  double objective = 0, lower_bound = 0;
  /// 1: all mesh axes were decided together in the end, and the bound holds for all plans;
  /// else as many as the mesh has axes, and the bound holds for changes of one axis.
  int levels = 1;
};

/// The plan that an assignment stands for. Free values are cut as the reader that cuts them
/// most wants them.
Plan plan_of(const Program& program, const Mesh& mesh, const Classes& classes,
             const Assignment& assignment);

/// The assignment that stands for `plan`: of each class what one member has, of each copy what
/// is cheapest for its readers together.
Assignment assignment_of(const Program& program, const Classes& classes, const Costs& costs,
                         const Plan& plan);

/// Every place where a plan's shardings differ. Free values are copied, not resharded, and
/// readers that want a value in one sharding share one copy: the first one's.
std::vector<PlannedReshard> reshards_of(const Program& program, const Plan& plan);

/// The sharding of a result when its op is done. Partial sums are reduced by then: straight
/// into the value's sharding where that only cuts further and the op may scatter (a
/// reduce-scatter), else by an all-reduce in place.
Sharding result_of(const Program& program, const Plan& plan, std::size_t op,
                   std::size_t result);

/// Re-derives every reshard of a plan and checks it: one sharding a value, each axis
/// at most once, even splits, pins kept, kept operands not resharded. Throws
/// `std::logic_error` that names the value or op. Used on every plan, searched or given.
void verify(const Program& program, const Mesh& mesh, const Plan& plan);

}  // namespace autoshard::planning
