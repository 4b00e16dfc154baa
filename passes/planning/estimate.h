/// What a given plan costs: one from a file, from sharding propagation, from another program.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "model/cluster.h"
#include "model/program.h"
#include "planning/plan.h"
#include "planning/plan_costs.h"

namespace autoshard::planning {

/// The cuts of an op's factors that give its operands and results these shardings; null: rank
/// 0. A factor is cut as the first operand that has it says; results only say what no operand
/// does, since a partial sum may be scattered over them. Throws `InvalidProgram` if the
/// shardings are none that factors of this op can make.
FactorAxes factors_of(const Rule& rule, const std::vector<const Sharding*>& operands,
                      const std::vector<const Sharding*>& results, const Mesh& mesh);

/// Every term of what `plan` costs. Its reshards are those that its shardings ask for:
/// readers close to each other share a copy, held as the value is or as one of them wants it,
/// whichever costs least. `memory`: what the program keeps.
PlanCosts estimate(const Program& program, const Cluster& cluster, const Plan& plan,
                   const ProgramMemory& memory);

}  // namespace autoshard::planning
