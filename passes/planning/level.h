/// One level of a plan: the cost network in which some mesh axes are decided for the whole
/// program at once, all others staying as they are.
#pragma once

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "model/program.h"
#include "planning/assignment.h"
#include "planning/classes.h"
#include "planning/costs.h"
#include "planning/option_store.h"
#include "planning/options.h"
#include "solver/problem.h"

namespace autoshard::planning {

/// Pins that no plan satisfies.
struct Contradiction : std::runtime_error {
  Contradiction(const std::string& what, std::int32_t op, std::int32_t value)
      : std::runtime_error(what), op(op), value(value) {}
  /// The op whose kept operands do not fit together, or -1.
  std::int32_t op;
  /// The value whose pins allow no common sharding, or -1.
  std::int32_t value;
};

/// A choice for every holder and every op class, as indices that the `LevelSolver` knows.
struct Labels {
  std::vector<std::int32_t> holders;
  std::vector<std::int32_t> ops;
  bool operator==(const Labels&) const = default;
};

/// Rounds of message passing for networks too wide to be solved exactly; fewer where rounds
/// times nodes would be more than `node_rounds`. Networks that take no more than
/// `exact_operations` to eliminate are solved exactly.
struct Rounds {
  std::int64_t fewest, most, node_rounds;
  double exact_operations = 2e6;
};

/// The objective that a level reached, and a lower bound on it.
struct LevelResult {
  double objective = std::numeric_limits<double>::infinity();
  double lower_bound = -std::numeric_limits<double>::infinity();
};

/// Builds and solves the networks of one program. Keeps options and tables from level to
/// level.
class LevelSolver {
 public:
  /// Decides for `mesh`, whatever the mesh of `program` is. All arguments must outlive the
  /// solver.
  LevelSolver(const Program& program, const Mesh& mesh, const Classes& classes,
              const Costs& costs, const AxisOrders& orders);

  /// Where message passing ended, by decided and free axes.
  using Messages = std::unordered_map<std::uint64_t, solver::KnownMessages>;

  /// Nothing is cut.
  Labels unsplit();

  /// Decides the axes in `free`, the axes in `decided` being as `labels` have them; any other
  /// axis cuts nothing. With `improve` the search starts from `labels`, which must then be
  /// allowed, and never leaves them for worse ones. Throws `Contradiction`.
  LevelResult solve(Labels& labels, AxisMask decided, AxisMask free, const Rounds& rounds,
                    std::uint64_t seed, bool improve);

  /// The network of `solve`, for other solvers and for tests.
  solver::Problem network(const Labels& labels, AxisMask decided, AxisMask free);

  /// What `solve` would charge for `labels` as they are.
  double objective(const Labels& labels);

  /// Rounds of message passing so far.
  std::int64_t rounds() const { return rounds_; }

  /// Where message passing ended on single axes.
  Messages messages_of_axes() const;
  /// Begins message passing where it ended for a program of other classes; `node_there`: by
  /// node, that of the other program which it takes after, or -1.
  void begin_with(const Messages& known, const std::vector<std::int32_t>& node_there);

  const Sharding& sharding(const Labels& labels, std::int32_t holder) const;
  const FactorAxes& axes(const Labels& labels, std::int32_t op_class) const;
  /// What labels mean, and the labels that mean it.
  Assignment assignment(const Labels& labels) const;
  Labels labels_of(const Assignment& assignment);

  /// What the ops take together at least, each with the best of the options that it has when
  /// the axes in `free` are decided and no others cut anything.
  double least_of_ops(const Labels& labels, AxisMask free);

  /// Upper bound on the options of one op when the axes in `free` are decided together.
  double most_options(AxisMask free) const;

 private:
  using Domain = OptionStore::Domain;
  using OpOptions = OptionStore::OpOptions;

  /// What the solver made of a network.
  struct Solved {
    std::vector<std::int32_t> choice;
    LevelResult result;
    /// The rounds it was allowed; none: more would change nothing.
    std::int64_t rounds = 0;
  };

  bool allowed(const Pin& pin, const Sharding& sharding) const;
  void make_domains(const Labels& labels);
  void check_kept(std::int32_t op_class);
  template <typename Cost>
  std::int32_t table(std::uint64_t id, const std::vector<std::int32_t>& rows, std::size_t cols,
                     const Cost& cost);
  std::uint64_t use_id(const Use& use, unsigned what) const;
  std::int32_t use_table(const Use& use);
  std::int32_t transient_table(const Use& use);
  std::int32_t flow_table(std::int32_t source, std::int32_t target);
  std::int32_t copy_table(std::int32_t source, std::int32_t target);
  std::int32_t local_table(std::int32_t table);
  void prepare(const Labels& labels, AxisMask decided, AxisMask free);
  void build();
  void give_back_tables();
  double cost_of(const std::vector<std::int32_t>& choice);
  std::vector<std::int32_t> choice_of(const Labels& labels) const;
  std::uint64_t identity() const;

  const Program& program_;
  const Mesh& mesh_;
  const Classes& classes_;
  const Costs& costs_;

  // Kept from level to level.
  OptionStore store_;
  std::vector<solver::Table> tables_;
  std::unordered_map<std::uint64_t, std::int32_t> table_index_;
  /// It begins there at another price, or where the decided axes have changed a little.
  Messages messages_;
  /// By `identity`.
  std::unordered_map<std::uint64_t, Solved> solved_;
  std::int64_t rounds_ = 0;
  std::vector<std::vector<std::int32_t>> pins_of_;
  std::vector<std::vector<std::int32_t>> kept_uses_, kept_results_;
  std::vector<bool> feeds_kept_;

  // Of the level being built.
  AxisMask known_ = 0, free_ = 0;
  std::vector<std::int32_t> domain_of_, options_of_;
  std::vector<std::int32_t> local_tables_;
  /// Of `tables_`, by their index in `problem_`, which has them while it is solved.
  std::vector<std::int32_t> borrowed_;
  solver::Problem problem_;
};

}  // namespace autoshard::planning
