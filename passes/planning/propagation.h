/// Sharding propagation: from the pins of a program to a sharding for every value and a
/// strategy for every op, at the least redistribution.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "cost/redistribution.h"
#include "model/program.h"
#include "planning/options.h"
#include "solver/problem.h"

namespace autoshard::planning {

/// One change of sharding that a plan asks for.
struct PlannedRedistribution {
  enum class Place : std::uint8_t { operand, result, join };
  Place place;
  /// Index of the op, or of the join.
  std::int32_t index;
  /// Which operand or result; 0 for joins.
  std::int32_t position;
  std::int32_t value;
  Sharding from, to;
  AxisMask partial;
  /// Once; multiply by `trips`.
  Redistribution volume;
  double trips;
};

struct Plan {
  /// One a value.
  std::vector<Sharding> values;
  /// One an op: the axes that cut each of its factors.
  std::vector<FactorAxes> ops;
  std::vector<PlannedRedistribution> redistributions;
  /// Sum over `redistributions` of bytes times trips: what each device sends.
  double redistributed_bytes = 0;
  /// Lower bound on the objective of the last network solved, and the objective reached.
  double objective = 0, lower_bound = 0;
  /// 1: all mesh axes were decided together in the end, and the bound holds for all plans;
  /// else as many as the mesh has axes, and the bound holds for changes of one axis.
  int levels = 1;
  std::int64_t network_nodes = 0, network_edges = 0;
  double build_seconds = 0, solve_seconds = 0;
};

/// Pins that no plan satisfies.
struct Contradiction : std::runtime_error {
  Contradiction(const std::string& what, std::int32_t op, std::int32_t value)
      : std::runtime_error(what), op(op), value(value) {}
  /// The op whose kept operands do not fit together, or -1.
  std::int32_t op;
  /// The value whose pins allow no common sharding, or -1.
  std::int32_t value;
};

struct PropagationOptions {
  /// After they were decided one by one, all mesh axes are decided together if no op has more
  /// options than this.
  std::int64_t max_options = 160;
  /// Rounds over the axes after the first one.
  int sweeps = 2;
  std::uint64_t seed = 0;
};

/// Minimises, over all shardings that the pins allow,
///
///   sum of trips * (bytes + 1024 * collectives)       (see cost/redistribution.h)
///     + 2^-20 * trips * (local bytes that ops read and write)
///
/// Every reader of a value pays for its own redistribution here; the plan then counts one for
/// all readers that want the same sharding.
///
/// The last term only breaks ties: of plans that move the same bytes the one that splits
/// more work wins. Throws `InvalidProgram` or `Contradiction`.
Plan propagate(const Program& program, const PropagationOptions& options);

/// The network of all mesh axes if they are decided together, else of the first one.
solver::Problem first_network(const Program& program, const PropagationOptions& options);

/// The sharding of a result when its op is done. Partial sums are reduced by then: straight
/// into the value's sharding where that only cuts further and the op may scatter (a
/// reduce-scatter), else by an all-reduce in place.
Sharding result_of(const Program& program, const Plan& plan, std::size_t op,
                   std::size_t result);

/// Re-derives every redistribution of a plan and checks it: one sharding a value, each axis
/// at most once, even splits, pins kept, kept operands not redistributed. Throws
/// `std::logic_error` that names the value or op. Used on every plan, searched or given.
void verify(const Program& program, const Plan& plan);

}  // namespace autoshard::planning
