/// One level of a plan: the cost network in which some mesh axes are decided for the whole
/// program at once, all others staying as they are.
#pragma once

#include <cstdint>
#include <limits>
#include <unordered_map>
#include <vector>

#include "model/program.h"
#include "planning/classes.h"
#include "planning/costs.h"
#include "planning/interned_assignment.h"
#include "planning/level_network.h"
#include "planning/level_options.h"
#include "planning/option_store.h"
#include "planning/options.h"
#include "solver/problem.h"

namespace autoshard::planning {

/// Rounds of message passing for networks too wide to be solved exactly; fewer where rounds
/// times nodes would be more than `node_rounds`. Networks that take no more than
/// `exact_operations` to eliminate are solved exactly.
struct Rounds {
  std::int64_t fewest, most, node_rounds;
  double exact_operations = 2e6;
};

/// The first time an axis is decided, when it is decided again, and when all axes are decided
/// together from a plan.
inline constexpr Rounds first_rounds{30, 300, 10'000'000};
inline constexpr Rounds sweep_rounds{10, 10, 0};
inline constexpr Rounds joint_rounds{10, 100, 5'000'000};

/// The objective that a level reached, and a lower bound on it.
struct LevelResult {
  double objective = std::numeric_limits<double>::infinity();
  double lower_bound = -std::numeric_limits<double>::infinity();
};

/// Solves the networks of one program. Keeps options, tables and solutions from level to
/// level.
class LevelSolver {
 public:
  /// Decides for `mesh`, whatever the mesh of `program` is. All arguments must outlive the
  /// solver.
  LevelSolver(const Program& program, const Mesh& mesh, const Classes& classes,
              const Costs& costs, const AxisOrders& orders);
  LevelSolver(const LevelSolver&) = delete;
  LevelSolver& operator=(const LevelSolver&) = delete;

  /// Where message passing ended, by decided and free axes.
  using Messages = std::unordered_map<std::uint64_t, solver::KnownMessages>;

  InternedAssignment unsplit() { return planning::unsplit(program_, classes_, store_); }
  InternedAssignment interned(const Assignment& assignment) {
    return planning::interned(assignment, classes_, store_);
  }
  Assignment resolved(const InternedAssignment& assignment) const {
    return planning::resolved(assignment, classes_, store_);
  }

  /// Decides the axes in `free`, the axes in `decided` being as `assignment` has them; any
  /// other axis cuts nothing. With `improve` the search starts from `assignment`, which must
  /// then be allowed, and never leaves it for a worse one. Throws `Contradiction`.
  LevelResult solve(InternedAssignment& assignment, AxisMask decided, AxisMask free,
                    const Rounds& rounds, std::uint64_t seed, bool improve);

  /// The network of `solve`, for other solvers and for tests.
  solver::Problem network(const InternedAssignment& assignment, AxisMask decided,
                          AxisMask free);

  /// What `solve` would charge for `assignment` as it is.
  double objective(const InternedAssignment& assignment);

  /// Rounds of message passing so far.
  std::int64_t rounds() const { return rounds_; }

  /// Where message passing ended on single axes.
  Messages messages_of_axes() const;
  /// Begins message passing where it ended for a program of other classes; `node_there`: by
  /// node, that of the other program which it takes after, or -1.
  void begin_with(const Messages& known, const std::vector<std::int32_t>& node_there);

  /// What the ops take together at least, each with the best of the options that it has when
  /// the axes in `free` are decided and no others cut anything.
  double least_of_ops(const InternedAssignment& assignment, AxisMask free);

  /// Upper bound on the options of one op when the axes in `free` are decided together.
  double most_options(AxisMask free) const;

 private:
  /// What the solver made of a network.
  struct Solved {
    std::vector<std::int32_t> choice;
    LevelResult result;
    /// The rounds it was allowed; none: more would change nothing.
    std::int64_t rounds = 0;
  };

  Solved solved(const LevelOptions& level, const std::vector<std::int32_t>& start,
                std::int64_t most_rounds, double exact_operations, std::uint64_t seed,
                solver::KnownMessages& messages);

  const Program& program_;
  const Mesh& mesh_;
  const Classes& classes_;
  const Costs& costs_;
  OptionStore store_;
  OptionFinder options_;
  NetworkBuilder networks_;
  /// Message passing begins where it ended at another price, or before the decided axes
  /// changed a little.
  Messages messages_;
  /// By the hash of options and prices.
  std::unordered_map<std::uint64_t, Solved> solved_;
  std::int64_t rounds_ = 0;
};

}  // namespace autoshard::planning
