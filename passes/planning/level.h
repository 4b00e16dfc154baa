/// One level of a plan: the cost network in which some mesh axes are decided for the whole
/// program at once, all others staying as they are.
#pragma once

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "model/hash_index.h"
#include "model/program.h"
#include "planning/classes.h"
#include "planning/options.h"
#include "solver/problem.h"

namespace autoshard::planning {

/// What a level minimises:
///
///   sum over op classes    trips * op
///   + sum over uses, flows trips * redistribution
///   + sum over holders     holder
///   + sum over operands    transient * bytes that an op redistributes for itself
class Costs {
 public:
  virtual ~Costs() = default;
  /// Once, to go from one sharding to another; see cost/redistribution.h.
  virtual double redistribution(const TensorType& type, const Sharding& from,
                                const Sharding& to, AxisMask partial,
                                bool may_scatter) const = 0;
  /// One run of an op whose factors are cut as `axes`; `base` is what other levels decided.
  virtual double op(const OpKind& kind, const FactorAxes& base,
                    const FactorAxes& axes) const = 0;
  /// What one run of an op takes more if the partial sums of its result, which it makes as
  /// `made`, are scattered to `held`.
  virtual double scattering(const OpKind&, const FactorAxes&, const Sharding&,
                            const Sharding&) const {
    return 0;
  }
  /// All members of a holder together.
  virtual double holder(std::int32_t holder, const Sharding& sharding) const = 0;
  /// What a byte costs that an op class holds only while it runs.
  virtual double transient(std::int32_t) const { return 0; }
  /// What a byte costs of copies of a holder that are more than slices of it.
  virtual double copy(std::int32_t) const { return 0; }
  /// Differs where any of the prices above differ.
  virtual std::uint64_t prices_id() const { return 0; }
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
  /// The labels of given choices, one a holder and one an op class.
  Labels labels_of(const std::vector<Sharding>& holders, const std::vector<FactorAxes>& ops);

  /// What the ops take together at least, each with the best of the options that it has when
  /// the axes in `free` are decided and no others cut anything.
  double least_of_ops(const Labels& labels, AxisMask free);

  /// Upper bound on the options of one op when the axes in `free` are decided together.
  double most_options(AxisMask free) const;

 private:
  /// Most types and kinds have few shardings and strategies.
  static constexpr std::size_t few = 8;
  /// All shardings of one type seen so far, and what it costs to go between them.
  struct Shardings {
    std::vector<Sharding> list;
    HashIndex index{few};
    /// Without partial sums, `stride` a row; NaN: not known yet.
    std::vector<double> costs;
    std::size_t stride = 0;
    std::unordered_map<std::uint64_t, double> partial_costs;
  };
  /// All strategies of one kind of op seen so far, and by strategy and sharding of the result
  /// what it takes to scatter that.
  struct Strategies {
    std::vector<FactorAxes> list;
    HashIndex index{few};
    std::unordered_map<std::uint64_t, double> scattering;
  };
  struct Domain {
    std::int32_t type;
    std::vector<std::int32_t> shardings;
  };
  struct OpOptions {
    /// Indices into the kind's strategies.
    std::vector<std::int32_t> strategies;
    /// Indices into the type's shardings, one a tensor and option.
    std::vector<std::vector<std::int32_t>> operands, results;
    std::vector<AxisMask> partial;
    std::vector<char> scatters;
    /// One run.
    std::vector<double> costs;
  };

  /// What the solver made of a network.
  struct Solved {
    std::vector<std::int32_t> choice;
    LevelResult result;
    /// The rounds it was allowed; none: more would change nothing.
    std::int64_t rounds = 0;
  };

  std::int32_t intern(std::int32_t type, const Sharding& sharding);
  std::int32_t intern_strategy(std::int32_t kind, const FactorAxes& axes);
  double cost_between(std::int32_t type, std::int32_t from, std::int32_t to);
  double cost_between(std::int32_t type, std::int32_t from, std::int32_t to, AxisMask partial,
                      bool scatters);
  double scattering(const Use& use, std::int32_t strategy, std::int32_t made,
                    std::int32_t held);
  double use_cost(const Use& use, std::int32_t sharding, const OpOptions& op,
                  std::int32_t option);
  double flow_cost(std::int32_t type, std::int32_t from, std::int32_t other, std::int32_t to);
  /// Bytes on a device of a copy that is no slice of what it is made from; else 0.
  double copied_bytes(std::int32_t type, std::int32_t from, std::int32_t to) const;
  bool allowed(const Pin& pin, const Sharding& sharding) const;
  std::int32_t domain(std::int32_t type, std::int32_t sharding);
  std::int32_t restricted_domain(std::int32_t type, std::vector<std::int32_t> shardings);
  std::int32_t options_for(std::int32_t kind, std::int32_t strategy);
  OpOptions options_from(std::int32_t kind, FactorAxes start);
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
  const AxisOrders& orders_;

  // Kept from level to level.
  std::vector<Shardings> shardings_;
  std::vector<Strategies> strategies_;
  std::vector<Domain> domains_;
  std::unordered_map<std::uint64_t, std::int32_t> domain_index_;
  std::unordered_map<std::string, std::int32_t> restricted_index_;
  std::vector<OpOptions> op_options_;
  std::unordered_map<std::uint64_t, std::int32_t> options_index_;
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
