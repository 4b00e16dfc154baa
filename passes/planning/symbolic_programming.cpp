#include "planning/symbolic_programming.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "planning/classes.h"
#include "planning/level.h"
#include "planning/options.h"
#include "planning/propagation.h"

namespace autoshard::planning {
namespace {

constexpr std::int32_t not_cut = -1;

/// The dim of `tensor` that holds `factor`, or `not_cut`.
std::int32_t dim_of(const RuleTensor& tensor, std::int32_t factor) {
  for (std::size_t d = 0; d < tensor.dims.size() && factor >= 0; ++d) {
    if (std::find(tensor.dims[d].begin(), tensor.dims[d].end(), factor) !=
        tensor.dims[d].end()) {
      return static_cast<std::int32_t>(d);
    }
  }
  return not_cut;
}

double elements(const std::vector<std::int64_t>& dims) {
  double total = 1;
  for (std::int64_t dim : dims) total *= static_cast<double>(dim);
  return total;
}

/// A plan, level by level: what is on one device before the level, and who holds each value.
class Walk {
 public:
  Walk(const Program& program, const std::vector<Sharding>& values,
       const std::vector<FactorAxes>& ops, double mem_coeff)
      : program_(program), values_(values), ops_(ops), mem_coeff_(mem_coeff) {
    for (const Rule& rule : program.rules) matmuls_.push_back(matmul_factors(rule));
    for (const Value& value : program.values) {
      const std::vector<std::int64_t>& dims = program.types[value.type].dims;
      value_local_.push_back(elements(dims));
      value_dims_.emplace_back(dims.begin(), dims.end());
    }
    for (const Op& op : program.ops) {
      const Rule& rule = program.rules[op.rule];
      std::vector<double> sizes;
      for (const Factor& factor : rule.factors) {
        sizes.push_back(static_cast<double>(factor.size));
      }
      sizes_.push_back(std::move(sizes));
    }
    pinned_.assign(program.values.size(), false);
    for (const Pin& pin : program.pins) pinned_[pin.value] = true;
  }

  std::vector<SymbolicChoice> choices() {
    std::vector<SymbolicChoice> found;
    for (const SymbolicLevel& level :
         symbolic_levels(program_.mesh, all_axes(program_.mesh))) {
      begin(level);
      for (std::size_t i = 0; i < program_.ops.size(); ++i) {
        if (matmuls_[program_.ops[i].rule]) found.push_back(choice(i));
      }
      end();
    }
    return found;
  }

 private:
  bool has_node(std::int32_t value) const {
    return value != no_value && !program_.values[value].is_free;
  }

  /// Elements that a mismatch at operand k of op i is charged.
  double operand_charge(std::size_t i, std::size_t k) const {
    const Rule& rule = program_.rules[program_.ops[i].rule];
    return elements_per_resharded * program_.ops[i].trips *
           local_elements(rule.operands[k], rule, program_.types, sizes_[i]);
  }
  double result_charge(std::size_t i, std::int32_t value) const {
    return elements_per_resharded * value_local_[value] * program_.ops[i].trips;
  }

  /// Calls `visit(value, dim the op wants cut, charge if it is not)` for every tensor of op i
  /// when it cuts `factor`.
  template <typename Visit>
  void tensors_of(std::size_t i, std::int32_t factor, Visit visit) const {
    const Op& op = program_.ops[i];
    if (op.is_unread) return;
    const Rule& rule = program_.rules[op.rule];
    for (std::size_t k = 0; k < op.operands.size(); ++k) {
      const std::int32_t v = op.operands[k];
      if (has_node(v)) visit(v, dim_of(rule.operands[k], factor), operand_charge(i, k));
    }
    for (std::size_t k = 0; k < op.results.size(); ++k) {
      const std::int32_t v = op.results[k];
      if (has_node(v)) visit(v, dim_of(rule.results[k], factor), result_charge(i, v));
    }
  }

  void begin(const SymbolicLevel& level) {
    level_ = level;
    cut_dim_.clear();
    charges_.clear();
    for (std::size_t v = 0; v < values_.size(); ++v) {
      cut_dim_.push_back(place_of(level.axis, values_[v].dims));
      charges_.emplace_back(values_[v].dims.size() + 1, 0.0);
    }
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      tensors_of(i, place_of(level.axis, ops_[i]),
                 [&](std::int32_t v, std::int32_t dim, double charge) {
                   charges_[v][dim + 1] += charge;
                 });
    }
    for (const Join& join : program_.joins) {
      if (!has_node(join.source) || !has_node(join.target)) continue;
      const double charge = elements_per_resharded * value_local_[join.target] * join.trips;
      charges_[join.source][cut_dim_[join.target] + 1] += charge;
      charges_[join.target][cut_dim_[join.source] + 1] += charge;
    }
  }

  void end() {
    const double parts = static_cast<double>(level_.parts);
    for (std::size_t v = 0; v < values_.size(); ++v) {
      if (cut_dim_[v] == not_cut) continue;
      value_local_[v] /= parts;
      value_dims_[v][cut_dim_[v]] /= level_.parts;
    }
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      const std::int32_t factor = place_of(level_.axis, ops_[i]);
      if (factor >= 0) sizes_[i][factor] /= parts;
    }
  }

  /// The least that is charged around `value`: for every tensor that wants it cut otherwise.
  double least_charge(std::int32_t value, const std::vector<double>& charges) const {
    double all = 0;
    for (double charge : charges) all += charge;
    if (pinned_[value]) return all - charges[cut_dim_[value] + 1];
    double kept = charges[0];
    for (std::size_t d = 0; d < value_dims_[value].size(); ++d) {
      if (value_dims_[value][d] % level_.parts == 0) kept = std::max(kept, charges[d + 1]);
    }
    return all - kept;
  }

  /// What op i is charged for the tensors around it when it cuts `factor`; one run.
  double reshard_cost(std::size_t i, std::int32_t factor) const {
    std::vector<std::int32_t> around;
    std::vector<std::vector<double>> charges;
    const auto of = [&](std::int32_t v) -> std::vector<double>& {
      const auto at = std::find(around.begin(), around.end(), v);
      if (at != around.end()) return charges[at - around.begin()];
      around.push_back(v);
      charges.push_back(charges_[v]);
      return charges.back();
    };
    const auto remove = [&](std::int32_t v, std::int32_t dim, double charge) {
      of(v)[dim + 1] = std::max(0.0, of(v)[dim + 1] - charge);
    };
    tensors_of(i, place_of(level_.axis, ops_[i]), remove);
    double total = 0;
    for (std::size_t n = 0; n < around.size(); ++n) {
      total -= least_charge(around[n], charges[n]);
    }
    tensors_of(i, factor, [&](std::int32_t v, std::int32_t dim, double charge) {
      of(v)[dim + 1] += charge;
    });
    for (std::size_t n = 0; n < around.size(); ++n) {
      total += least_charge(around[n], charges[n]);
    }
    const double trips = program_.ops[i].trips;
    return trips > 0 ? total / trips : 0;
  }

  bool can_cut(std::size_t i, std::int32_t factor) const {
    // A size is a whole number: levels only cut what is divisible.
    return static_cast<std::int64_t>(sizes_[i][factor]) % level_.parts == 0;
  }

  SymbolicChoice choice(std::size_t i) const {
    const MatMulFactors& matmul = *matmuls_[program_.ops[i].rule];
    SymbolicChoice made;
    made.op = static_cast<std::int32_t>(i);
    made.level = level_;
    made.sizes = local_sizes(matmul, sizes_[i]);
    made.has_batch = !matmul.batch.empty();
    const MatMulCosts costs =
        matmul_costs(made.sizes, made.has_batch, mem_coeff_, level_.parts);
    const std::int32_t cut_now = place_of(level_.axis, ops_[i]);
    const MatMulCut chosen = matmul.cut_of(cut_now);
    const bool was_j = is_cut_before(i, matmul.j), was_k = is_cut_before(i, matmul.k);
    for (int c = made.has_batch ? 0 : static_cast<int>(MatMulCut::i); c < num_matmul_cuts;
         ++c) {
      const MatMulCut cut = static_cast<MatMulCut>(c);
      SymbolicCandidate best{cut, -1, not_possible, 0};
      if (cut == MatMulCut::none) {
        best = {cut, -1, costs[c], reshard_cost(i, -1)};
      } else if (cut == chosen) {
        best = {cut, cut_now, costs[c], reshard_cost(i, cut_now)};
      } else if (!(cut == MatMulCut::j && was_k) && !(cut == MatMulCut::k && was_j)) {
        for (std::int32_t f = 0; f < static_cast<std::int32_t>(sizes_[i].size()); ++f) {
          if (matmul.cut_of(f) != cut || !can_cut(i, f)) continue;
          const double around = reshard_cost(i, f);
          if (best.factor < 0 || around < best.reshard_cost) {
            best = {cut, f, costs[c], around};
          }
        }
      }
      if (cut == chosen) made.chosen = static_cast<std::int32_t>(made.candidates.size());
      made.candidates.push_back(best);
    }
    return made;
  }

  bool is_cut_before(std::size_t i, const std::vector<std::int32_t>& factors) const {
    const Rule& rule = program_.rules[program_.ops[i].rule];
    return std::any_of(factors.begin(), factors.end(), [&](std::int32_t f) {
      return sizes_[i][f] != static_cast<double>(rule.factors[f].size);
    });
  }

  const Program& program_;
  const std::vector<Sharding>& values_;
  const std::vector<FactorAxes>& ops_;
  const double mem_coeff_;
  std::vector<std::optional<MatMulFactors>> matmuls_;
  std::vector<bool> pinned_;
  /// Before the level: elements and dims of values, sizes of the factors of ops.
  std::vector<double> value_local_;
  std::vector<std::vector<std::int64_t>> value_dims_;
  std::vector<std::vector<double>> sizes_;
  SymbolicLevel level_{0, 1};
  /// The dim of each value that the level cuts, and for each value what all that touches it
  /// would charge if it is not: index 0 for those that want it whole, d + 1 for dim d.
  std::vector<std::int32_t> cut_dim_;
  std::vector<std::vector<double>> charges_;
};

/// What decides between plans of equal cost, in elements a level.
constexpr double tie = 1.0 / (1 << 20);

/// The symbolic cost of the axes in `known`.
class SymbolicCosts : public Costs {
 public:
  /// `weight` of ties: 0 or 1.
  SymbolicCosts(const Program& program, const Classes& classes, double mem_coeff,
                double weight)
      : program_(program), classes_(classes), mem_coeff_(mem_coeff), tie_(weight * tie) {
    is_result_.assign(program.values.size(), false);
    for (const Rule& rule : program.rules) matmuls_.push_back(matmul_factors(rule));
    for (const Op& op : program.ops) {
      for (std::int32_t v : op.results) {
        if (v != no_value && matmuls_[op.rule]) is_result_[v] = true;
      }
    }
  }

  /// Levels of other axes cost nothing. Costs that were asked for before do not change.
  void set_known(AxisMask known) { known_ = known; }

  double reshard(const TensorType& type, const Sharding& from, const Sharding& to,
                 AxisMask) const override {
    return symbolic_reshard(type.dims, from, to, program_.mesh, known_);
  }

  double op(const OpSignature& signature, const FactorAxes&,
            const FactorAxes& axes) const override {
    const double cost = symbolic_cost(program_.rules[signature.rule], program_.types, axes,
                                      program_.mesh, known_, mem_coeff_);
    if (!matmuls_[signature.rule]) return cost;
    double order = 0;
    for (const SymbolicLevel& level : symbolic_levels(program_.mesh, known_)) {
      order +=
          static_cast<double>(matmuls_[signature.rule]->cut_of(place_of(level.axis, axes)));
    }
    return cost + tie_ * order;
  }

  double held(std::int32_t sharding_class, const Sharding& sharding) const override {
    const ShardingClass& of = classes_.values[sharding_class];
    if (of.source >= 0 || !is_result_[of.value]) return 0;
    // The earlier the value, the dearer to leave it whole.
    const double weight =
        1 - static_cast<double>(of.value) / (2 * static_cast<double>(is_result_.size()));
    double whole = 0;
    for (const SymbolicLevel& level : symbolic_levels(program_.mesh, known_)) {
      whole += place_of(level.axis, sharding.dims) < 0;
    }
    return tie_ * weight * whole * of.count;
  }

  /// All ties together are at most this.
  double most_ties() const {
    const AxisMask all = all_axes(program_.mesh);
    const auto levels = static_cast<double>(symbolic_levels(program_.mesh, all).size());
    double total = 0;
    for (const OpClass& op : classes_.ops) total += op.trips * num_matmul_cuts;
    for (const ShardingClass& sharding_class : classes_.values) total += sharding_class.count;
    return tie_ * levels * total;
  }

 private:
  const Program& program_;
  const Classes& classes_;
  const double mem_coeff_, tie_;
  AxisMask known_ = 0;
  std::vector<bool> is_result_;
  std::vector<std::optional<MatMulFactors>> matmuls_;
};

ClassOptions class_options(const Program& program) {
  ClassOptions options;
  if (program.ops.size() >= fold_from_ops) options.fold_rounds = fold_rounds;
  return options;
}

class SymbolicSearch {
 public:
  SymbolicSearch(const Program& program, const SymbolicOptions& options)
      : program_(program),
        options_(options),
        orders_(program.mesh, program.pins),
        classes_(classes_of(program, nullptr, class_options(program))),
        costs_(program, classes_, options.mem_coeff, 1),
        all_(all_axes(program.mesh)) {}

  Plan run() {
    // Each level by itself knows nothing of later ones, which would cost something even where
    // they cut nothing; the rounds after it know all. So they have tables of their own.
    LevelSolver first(program_, program_.mesh, classes_, costs_, orders_);
    const bool together =
        first.most_options(all_) <= static_cast<double>(options_.max_options);
    InternedAssignment assignment = first.unsplit();
    LevelResult reached;
    AxisMask decided = 0;
    bool is_plan = true;
    try {
      for (int axis = 0; axis < program_.mesh.rank(); ++axis) {
        decided |= 1u << axis;
        costs_.set_known(decided);
        reached = first.solve(assignment, decided & ~(1u << axis), 1u << axis, first_rounds,
                              options_.seed, false);
      }
    } catch (const Contradiction&) {
      // What one axis decided may leave no room for the next; all together have the last word.
      if (!together || program_.mesh.rank() == 1) throw;
      is_plan = false;
    }
    costs_.set_known(all_);
    LevelSolver levels(program_, program_.mesh, classes_, costs_, orders_);
    assignment = is_plan ? moved(first, assignment, levels) : levels.unsplit();
    if (is_plan) reached.objective = levels.objective(assignment);
    for (int sweep = 0; is_plan && sweep < options_.sweeps && program_.mesh.rank() > 1;
         ++sweep) {
      const double before = reached.objective;
      for (int axis = 0; axis < program_.mesh.rank(); ++axis) {
        reached = levels.solve(assignment, all_ & ~(1u << axis), 1u << axis, sweep_rounds,
                               options_.seed, true);
      }
      if (reached.objective >= before) break;
    }
    if (together && program_.mesh.rank() > 1) {
      reached = levels.solve(assignment, 0, all_, is_plan ? joint_rounds : first_rounds,
                             options_.seed, is_plan);
    }
    Plan plan = plan_of(program_, program_.mesh, classes_, levels.resolved(assignment));
    plan.levels = together ? 1 : program_.mesh.rank();
    plan.objective = untied(levels, assignment);
    plan.lower_bound =
        std::clamp(reached.lower_bound - costs_.most_ties(), 0.0, plan.objective);
    return plan;
  }

 private:
  InternedAssignment moved(const LevelSolver& from, const InternedAssignment& assignment,
                           LevelSolver& to) const {
    return to.interned(from.resolved(assignment));
  }

  /// The cost of `assignment` without what decides ties.
  double untied(const LevelSolver& from, const InternedAssignment& assignment) const {
    SymbolicCosts costs(program_, classes_, options_.mem_coeff, 0);
    costs.set_known(all_);
    LevelSolver levels(program_, program_.mesh, classes_, costs, orders_);
    return levels.objective(moved(from, assignment, levels));
  }

  const Program& program_;
  const SymbolicOptions options_;
  AxisOrders orders_;
  Classes classes_;
  SymbolicCosts costs_;
  const AxisMask all_;
};

/// `program` with pins that leave every main op only the strategy it has in `plan`: each
/// operand is read through a value that is pinned as the op wants it. Values and ops keep
/// their indices.
Program with_main_ops_fixed(const Program& program, const Plan& plan) {
  Program fixed = program;
  std::map<std::pair<std::int32_t, std::string>, std::size_t> joins;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Rule& rule = program.rules[program.ops[i].rule];
    Op& op = fixed.ops[i];
    if (!is_main(rule) || op.is_unread) continue;
    for (std::size_t k = 0; k < op.operands.size(); ++k) {
      const std::int32_t v = op.operands[k];
      if (v == no_value) continue;
      const Sharding wanted = project(rule.operands[k], plan.ops[i]);
      Pin pin{v, {}};
      for (const AxisList& axes : wanted.dims) pin.dims.push_back({axes, false, std::nullopt});
      if (op.kept_operands[k] && !program.values[v].is_free) {
        fixed.pins.push_back(std::move(pin));
        continue;
      }
      op.kept_operands[k] = true;
      const auto [known, is_new] = joins.try_emplace({v, key(wanted)}, fixed.joins.size());
      if (!is_new) {
        Join& join = fixed.joins[known->second];
        join.trips = std::max(join.trips, op.trips);
        op.operands[k] = join.target;
        continue;
      }
      pin.value = op.operands[k] = static_cast<std::int32_t>(fixed.values.size());
      fixed.values.push_back({program.values[v].type, false});
      fixed.joins.push_back({v, pin.value, op.trips});
      fixed.pins.push_back(std::move(pin));
    }
  }
  return fixed;
}

}  // namespace

std::vector<SymbolicChoice> symbolic_choices(const Program& program,
                                             const std::vector<Sharding>& values,
                                             const std::vector<FactorAxes>& ops,
                                             double mem_coeff) {
  return Walk(program, values, ops, mem_coeff).choices();
}

SymbolicPlan symbolic_programming(const Program& program, const SymbolicOptions& options) {
  check(program);
  SymbolicSearch search(program, options);
  SymbolicPlan result{search.run(), {}};
  Plan followed = propagate(with_main_ops_fixed(program, result.plan),
                            {options.max_options, options.sweeps, options.seed});
  followed.values.resize(program.values.size());
  result.plan.values = std::move(followed.values);
  result.plan.ops = std::move(followed.ops);
  result.plan.reshards = reshards_of(program, result.plan);
  for (const PlannedReshard& r : result.plan.reshards) {
    result.plan.resharded_bytes += r.volume.bytes * r.trips;
  }
  verify(program, program.mesh, result.plan);
  result.choices =
      symbolic_choices(program, result.plan.values, result.plan.ops, options.mem_coeff);
  return result;
}

}  // namespace autoshard::planning
