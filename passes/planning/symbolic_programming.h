/// Recursive programming under the symbolic cost of cost/symbolic.h.
#pragma once

#include <cstdint>
#include <vector>

#include "cost/symbolic.h"
#include "model/program.h"
#include "planning/plan.h"

namespace autoshard::planning {

/// A cut of a matmul at one level, and what it costs, everything around it staying as the plan
/// has it.
struct SymbolicCandidate {
  MatMulCut cut;
  /// The factor that is cut, -1 for `none` and for what is not possible.
  std::int32_t factor;
  /// `not_possible` if no factor of this kind can be cut.
  double op_cost;
  /// What is charged on the tensors around the op more than without the op. Tensors that
  /// nothing else holds, as a parameter with one reader, are cut as the op wants them.
  double reshard_cost;

  double total() const { return op_cost + reshard_cost; }
};

/// The choice of one matmul at one level.
struct SymbolicChoice {
  std::int32_t op;
  SymbolicLevel level;
  /// On one device, before the level.
  MatMulSizes sizes;
  bool has_batch;
  /// In the order of `MatMulCut`; without batch and expert if there is no batch dim.
  std::vector<SymbolicCandidate> candidates;
  /// Index into `candidates`.
  std::int32_t chosen;
};

/// What each matmul could choose at each level, and what it costs there. Levels in mesh order,
/// ops in program order within a level. Costs are those of one run of the op.
///
/// `values` and `ops` are a plan of all axes of the program's mesh.
std::vector<SymbolicChoice> symbolic_choices(const Program& program,
                                             const std::vector<Sharding>& values,
                                             const std::vector<FactorAxes>& ops,
                                             double mem_coeff);

struct SymbolicOptions {
  /// > 0. Larger: more model parallelism, smaller: more data parallelism.
  double mem_coeff = 0.1;
  /// After they were decided one by one, all mesh axes are decided together if no op has more
  /// options than this.
  std::int64_t max_options = 160;
  /// Rounds over the axes after the first one.
  int sweeps = 2;
  std::uint64_t seed = 0;
};

struct SymbolicPlan {
  /// `objective` and `lower_bound` are of the symbolic cost, in elements: ops and
  /// reshards times their trips, readers of a value that want the same sharding sharing
  /// one reshard. The bound is over plans in which ops that look alike are cut alike.
  Plan plan;
  std::vector<SymbolicChoice> choices;
};

/// Minimises the symbolic cost and lets the other ops follow.
///
/// One network an axis, outermost first, for the whole program at once; then rounds over the
/// axes, and all axes together where that is small enough. What that says of matmuls and
/// convolutions is kept; all other ops, which cost next to nothing there, and the shardings of
/// values are then those that `propagate` finds around them.
///
/// Of equal costs the first cut in the order of `MatMulCut` wins, and the plan that cuts the
/// results of earlier matmuls. Throws `InvalidProgram` or `Contradiction`.
SymbolicPlan symbolic_programming(const Program& program, const SymbolicOptions& options);

}  // namespace autoshard::planning
