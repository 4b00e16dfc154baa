#include "planning/level.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <tuple>

namespace autoshard::planning {
namespace {

/// The solver stops when it has proved to be this close to the least cost.
constexpr double relative_gap = 1e-4;
constexpr double not_allowed = solver::kNotAllowed;

/// Can axes of sizes `sizes[next..]` be dealt out so that dim d gets `missing[d]` blocks?
bool dealable(std::vector<std::int64_t>& missing, const std::vector<std::int64_t>& sizes,
              std::size_t next) {
  if (std::all_of(missing.begin(), missing.end(), [](auto m) { return m == 1; })) return true;
  if (next == sizes.size()) return false;
  for (std::int64_t& m : missing) {
    if (m % sizes[next] != 0) continue;
    m /= sizes[next];
    const bool fits = dealable(missing, sizes, next + 1);
    m *= sizes[next];
    if (fits) return true;
  }
  return dealable(missing, sizes, next + 1);
}

/// Nodes of the network: holders first, then op classes.
std::int64_t rounds_for(const Rounds& rounds, std::int64_t nodes) {
  return std::clamp(rounds.node_rounds / std::max<std::int64_t>(nodes, 1), rounds.fewest,
                    rounds.most);
}

}  // namespace

LevelSolver::LevelSolver(const Program& program, const Mesh& mesh, const Classes& classes,
                         const Costs& costs, const AxisOrders& orders)
    : program_(program),
      mesh_(mesh),
      classes_(classes),
      costs_(costs),
      store_(program, mesh, classes, costs, orders),
      pins_of_(classes.holders.size()),
      kept_uses_(classes.ops.size()),
      kept_results_(classes.ops.size()),
      feeds_kept_(classes.holders.size(), false) {
  for (std::size_t p = 0; p < program.pins.size(); ++p) {
    const std::int32_t holder = classes.holder_of[program.pins[p].value];
    // Members of a class have equal pins; one of them speaks for all.
    if (holder >= 0 && classes.holders[holder].value == program.pins[p].value) {
      pins_of_[holder].push_back(static_cast<std::int32_t>(p));
    }
  }
  for (const Use& use : classes.uses)
    feeds_kept_[use.holder] = feeds_kept_[use.holder] || use.is_kept;
  for (std::size_t u = 0; u < classes.uses.size(); ++u) {
    const Use& use = classes.uses[u];
    if (use.is_kept) kept_uses_[use.op].push_back(static_cast<std::int32_t>(u));
    if (use.is_result && feeds_kept_[use.holder]) {
      kept_results_[use.op].push_back(static_cast<std::int32_t>(u));
    }
  }
}

Labels LevelSolver::unsplit() {
  Labels labels;
  for (const Holder& holder : classes_.holders) {
    labels.holders.push_back(store_.intern(
        holder.type, {std::vector<AxisList>(program_.types[holder.type].dims.size())}));
  }
  for (const OpClass& op : classes_.ops) {
    const Rule& rule = program_.rules[classes_.kinds[op.kind].rule];
    labels.ops.push_back(store_.intern_strategy(op.kind, FactorAxes(rule.factors.size())));
  }
  return labels;
}

Assignment LevelSolver::assignment(const Labels& labels) const {
  Assignment result;
  result.shardings.reserve(labels.holders.size());
  result.ops.reserve(labels.ops.size());
  for (std::size_t h = 0; h < labels.holders.size(); ++h) {
    result.shardings.push_back(sharding(labels, static_cast<std::int32_t>(h)));
  }
  for (std::size_t o = 0; o < labels.ops.size(); ++o) {
    result.ops.push_back(axes(labels, static_cast<std::int32_t>(o)));
  }
  return result;
}

Labels LevelSolver::labels_of(const Assignment& assignment) {
  Labels labels;
  for (std::size_t h = 0; h < assignment.shardings.size(); ++h) {
    labels.holders.push_back(store_.intern(classes_.holders[h].type, assignment.shardings[h]));
  }
  for (std::size_t o = 0; o < assignment.ops.size(); ++o) {
    labels.ops.push_back(store_.intern_strategy(classes_.ops[o].kind, assignment.ops[o]));
  }
  return labels;
}

const Sharding& LevelSolver::sharding(const Labels& labels, std::int32_t holder) const {
  return store_.sharding(classes_.holders[holder].type, labels.holders[holder]);
}

const FactorAxes& LevelSolver::axes(const Labels& labels, std::int32_t op_class) const {
  return store_.strategy(classes_.ops[op_class].kind, labels.ops[op_class]);
}

/// Does `pin` allow `sharding` as far as the axes known at this level go?
bool LevelSolver::allowed(const Pin& pin, const Sharding& sharding) const {
  Pin restricted = pin;
  std::vector<std::int64_t> missing;
  for (std::size_t d = 0; d < pin.dims.size(); ++d) {
    DimPin& dim = restricted.dims[d];
    if (dim.num_shards) {
      const std::int64_t blocks = num_shards(sharding.dims[d], mesh_);
      if (*dim.num_shards % blocks != 0) return false;
      missing.push_back(*dim.num_shards / blocks);
      dim = DimPin{{}, true, std::nullopt};
      continue;
    }
    dim.axes.clear();
    for (AxisIndex axis : pin.dims[d].axes) {
      if ((known_ >> axis) & 1u) dim.axes.push_back(axis);
    }
  }
  if (!allows(restricted, sharding, mesh_)) return false;
  std::vector<std::int64_t> later;
  for (int axis = 0; axis < mesh_.rank(); ++axis) {
    if (!((known_ >> axis) & 1u)) later.push_back(mesh_.axis_sizes[axis]);
  }
  return dealable(missing, later, 0);
}

void LevelSolver::make_domains(const Labels& labels) {
  domain_of_.assign(classes_.holders.size(), -1);
  for (std::size_t h = 0; h < classes_.holders.size(); ++h) {
    const std::int32_t type = classes_.holders[h].type;
    domain_of_[h] = store_.domain(type, labels.holders[h], free_);
    bool is_first = true;
    for (std::int32_t p : pins_of_[h]) {
      const Pin& pin = program_.pins[p];
      // What the user wants may be an order of axes that no option has: it becomes one.
      Sharding exact{std::vector<AxisList>(pin.dims.size())};
      for (std::size_t d = 0; d < pin.dims.size(); ++d) {
        for (AxisIndex axis : pin.dims[d].axes) {
          if ((known_ >> axis) & 1u) exact.dims[d].push_back(axis);
        }
      }
      std::vector<std::int32_t> candidates = store_.domain_at(domain_of_[h]).shardings;
      const std::int32_t wanted = store_.intern(type, exact);
      if (is_first &&
          std::find(candidates.begin(), candidates.end(), wanted) == candidates.end()) {
        candidates.push_back(wanted);
      }
      is_first = false;
      std::erase_if(candidates,
                    [&](std::int32_t s) { return !allowed(pin, store_.sharding(type, s)); });
      if (candidates.empty()) {
        throw Contradiction("the pins of one value allow no common sharding", -1, pin.value);
      }
      domain_of_[h] = store_.restricted_domain(type, std::move(candidates));
    }
  }
}

/// Options of an op that take its kept operands as the pins have them must exist, and what
/// they make is all that a result can be that is kept in turn.
void LevelSolver::check_kept(std::int32_t op_class) {
  if (kept_uses_[op_class].empty()) return;
  const OpOptions& options = store_.options_at(options_of_[op_class]);
  std::vector<std::size_t> fitting;
  for (std::size_t o = 0; o < options.strategies.size(); ++o) {
    const bool fits = std::all_of(
        kept_uses_[op_class].begin(), kept_uses_[op_class].end(), [&](std::int32_t u) {
          const Use& use = classes_.uses[u];
          const auto& shardings = store_.domain_at(domain_of_[use.holder]).shardings;
          return std::find(shardings.begin(), shardings.end(),
                           options.operands[use.position][o]) != shardings.end();
        });
    if (fits) fitting.push_back(o);
  }
  if (fitting.empty()) {
    throw Contradiction("no strategy of the op fits its pinned operands",
                        classes_.ops[op_class].op, -1);
  }
  for (std::int32_t u : kept_results_[op_class]) {
    const Use& use = classes_.uses[u];
    std::vector<std::int32_t> images;
    for (std::size_t o : fitting) images.push_back(options.results[use.position][o]);
    std::sort(images.begin(), images.end());
    images.erase(std::unique(images.begin(), images.end()), images.end());
    domain_of_[use.holder] =
        store_.restricted_domain(classes_.holders[use.holder].type, std::move(images));
  }
}

/// A table that is made once: `cost(s, c)` for every sharding s in `rows` and column c.
template <typename Cost>
std::int32_t LevelSolver::table(std::uint64_t id, const std::vector<std::int32_t>& rows,
                                std::size_t cols, const Cost& cost) {
  auto [entry, is_new] =
      table_index_.try_emplace(id, static_cast<std::int32_t>(tables_.size()));
  if (!is_new) return entry->second;
  solver::Table made;
  made.rows = static_cast<std::int32_t>(rows.size());
  made.cols = static_cast<std::int32_t>(cols);
  made.cost.reserve(rows.size() * cols);
  for (std::int32_t s : rows) {
    for (std::int32_t c = 0; c < made.cols; ++c) made.cost.push_back(cost(s, c));
  }
  tables_.push_back(std::move(made));
  return entry->second;
}

/// `what`: which of the tables of a use.
std::uint64_t LevelSolver::use_id(const Use& use, unsigned what) const {
  return (static_cast<std::uint64_t>(domain_of_[use.holder]) << 40) |
         (static_cast<std::uint64_t>(options_of_[use.op]) << 16) |
         (static_cast<std::uint64_t>(use.position) << 2) | what;
}

/// Redistribution costs, the holder's options by the op's. Partial sums are reduced and
/// redistributed on the way from the op to its result.
std::int32_t LevelSolver::use_table(const Use& use) {
  const OpOptions& op = store_.options_at(options_of_[use.op]);
  return table(use_id(use, (use.is_result ? 2u : 0u) | (use.is_kept ? 1u : 0u)),
               store_.domain_at(domain_of_[use.holder]).shardings, op.strategies.size(),
               [&](std::int32_t s, std::int32_t o) { return store_.use_cost(use, s, op, o); });
}

/// Bytes of the operand on a device if the op has to redistribute it, the holder's options by
/// the op's.
std::int32_t LevelSolver::transient_table(const Use& use) {
  const Domain& holder = store_.domain_at(domain_of_[use.holder]);
  const std::vector<std::int32_t>& wanted =
      store_.options_at(options_of_[use.op]).operands[use.position];
  return table(use_id(use, 3u), holder.shardings, wanted.size(),
               [&](std::int32_t s, std::int32_t o) {
                 return store_.copied_bytes(holder.type, s, wanted[o]);
               });
}

std::int32_t LevelSolver::flow_table(std::int32_t source, std::int32_t target) {
  const Domain &from = store_.domain_at(source), &to = store_.domain_at(target);
  return table((1ull << 63) | (static_cast<std::uint64_t>(source) << 31) |
                   static_cast<std::uint64_t>(target),
               from.shardings, to.shardings.size(), [&](std::int32_t s, std::int32_t t) {
                 return store_.flow_cost(from.type, s, to.type, to.shardings[t]);
               });
}

/// Bytes of a copy on a device, its source's options by its own.
std::int32_t LevelSolver::copy_table(std::int32_t source, std::int32_t target) {
  const Domain &from = store_.domain_at(source), &to = store_.domain_at(target);
  return table((3ull << 62) | (static_cast<std::uint64_t>(source) << 31) |
                   static_cast<std::uint64_t>(target),
               from.shardings, to.shardings.size(), [&](std::int32_t s, std::int32_t t) {
                 return store_.copied_bytes(from.type, s, to.shardings[t]);
               });
}

/// Index in the problem being built of a table that is kept. The problem borrows it.
std::int32_t LevelSolver::local_table(std::int32_t table) {
  if (static_cast<std::size_t>(table) >= local_tables_.size()) {
    local_tables_.resize(tables_.size(), -1);
  }
  if (local_tables_[table] < 0) {
    local_tables_[table] = problem_.add_table(std::move(tables_[table]));
    borrowed_.push_back(table);
  }
  return local_tables_[table];
}

void LevelSolver::give_back_tables() {
  for (std::size_t t = 0; t < borrowed_.size(); ++t) {
    tables_[borrowed_[t]] = std::move(problem_.tables[t]);
  }
  borrowed_.clear();
  problem_.tables.clear();
}

/// The options of all holders and ops.
void LevelSolver::prepare(const Labels& labels, AxisMask decided, AxisMask free) {
  known_ = decided | free;
  free_ = free;
  make_domains(labels);
  options_of_.assign(classes_.ops.size(), -1);
  for (std::size_t o = 0; o < classes_.ops.size(); ++o) {
    options_of_[o] = store_.options_for(classes_.ops[o].kind, labels.ops[o], free_);
    check_kept(static_cast<std::int32_t>(o));
  }
}

/// The network of what is prepared.
void LevelSolver::build() {
  problem_ = {};
  local_tables_.assign(tables_.size(), -1);
  std::vector<double> costs;
  for (std::size_t h = 0; h < classes_.holders.size(); ++h) {
    const Domain& options = store_.domain_at(domain_of_[h]);
    costs.clear();
    for (std::int32_t s : options.shardings) {
      costs.push_back(
          costs_.holder(static_cast<std::int32_t>(h), store_.sharding(options.type, s)));
    }
    problem_.add_node(costs);
  }
  const auto first_op = static_cast<std::int32_t>(classes_.holders.size());
  for (std::size_t o = 0; o < classes_.ops.size(); ++o) {
    costs = store_.options_at(options_of_[o]).costs;
    for (double& cost : costs) cost *= classes_.ops[o].trips;
    problem_.add_node(costs);
  }
  for (const Use& use : classes_.uses) {
    problem_.add_edge(use.holder, first_op + use.op, local_table(use_table(use)), use.trips);
    if (use.is_result || use.is_kept) continue;
    const double price = costs_.transient(use.op);
    if (price > 0) {
      problem_.add_edge(use.holder, first_op + use.op, local_table(transient_table(use)),
                        price);
    }
  }
  for (const Flow& flow : classes_.flows) {
    const std::int32_t source = domain_of_[flow.source], target = domain_of_[flow.target];
    problem_.add_edge(flow.source, flow.target, local_table(flow_table(source, target)),
                      flow.trips);
    const double price = costs_.copy(flow.target);
    if (price > 0) {
      problem_.add_edge(flow.source, flow.target, local_table(copy_table(source, target)),
                        price);
    }
  }
}

/// What the network of what is prepared charges for a choice, without building it. Adds up in
/// the same order as the solver, so that equal plans have equal costs to the last bit.
double LevelSolver::cost_of(const std::vector<std::int32_t>& choice) {
  const std::size_t first_op = classes_.holders.size();
  long double total = 0;
  for (std::size_t h = 0; h < first_op; ++h) {
    const Domain& options = store_.domain_at(domain_of_[h]);
    total += costs_.holder(static_cast<std::int32_t>(h),
                           store_.sharding(options.type, options.shardings[choice[h]]));
  }
  for (std::size_t o = 0; o < classes_.ops.size(); ++o) {
    total +=
        store_.options_at(options_of_[o]).costs[choice[first_op + o]] * classes_.ops[o].trips;
  }
  for (const Use& use : classes_.uses) {
    const std::int32_t s =
        store_.domain_at(domain_of_[use.holder]).shardings[choice[use.holder]];
    const OpOptions& op = store_.options_at(options_of_[use.op]);
    const std::int32_t option = choice[first_op + static_cast<std::size_t>(use.op)];
    const double cost = store_.use_cost(use, s, op, option);
    if (cost == not_allowed) return not_allowed;
    total += use.trips * cost;
    if (use.is_result || use.is_kept) continue;
    const double price = costs_.transient(use.op);
    if (price > 0) {
      total += price * store_.copied_bytes(classes_.holders[use.holder].type, s,
                                           op.operands[use.position][option]);
    }
  }
  for (const Flow& flow : classes_.flows) {
    const Domain& source = store_.domain_at(domain_of_[flow.source]);
    const Domain& target = store_.domain_at(domain_of_[flow.target]);
    const std::int32_t from = source.shardings[choice[flow.source]];
    const std::int32_t to = target.shardings[choice[flow.target]];
    total += flow.trips * store_.flow_cost(source.type, from, target.type, to);
    const double price = costs_.copy(flow.target);
    if (price > 0) total += price * store_.copied_bytes(source.type, from, to);
  }
  return static_cast<double>(total);
}

/// The options that `labels` take; empty if they take one that the network does not have.
std::vector<std::int32_t> LevelSolver::choice_of(const Labels& labels) const {
  std::vector<std::int32_t> choice;
  choice.reserve(classes_.holders.size() + classes_.ops.size());
  const auto add = [&](const std::vector<std::int32_t>& options, std::int32_t wanted) {
    const auto found = std::find(options.begin(), options.end(), wanted);
    if (found == options.end()) return false;
    choice.push_back(static_cast<std::int32_t>(found - options.begin()));
    return true;
  };
  for (std::size_t h = 0; h < classes_.holders.size(); ++h) {
    if (!add(store_.domain_at(domain_of_[h]).shardings, labels.holders[h])) return {};
  }
  for (std::size_t o = 0; o < classes_.ops.size(); ++o) {
    if (!add(store_.options_at(options_of_[o]).strategies, labels.ops[o])) return {};
  }
  return choice;
}

solver::Problem LevelSolver::network(const Labels& labels, AxisMask decided, AxisMask free) {
  prepare(labels, decided, free);
  build();
  solver::Problem copy = problem_;
  give_back_tables();
  return copy;
}

double LevelSolver::objective(const Labels& labels) {
  AxisMask all = 0;
  for (int axis = 0; axis < mesh_.rank(); ++axis) all |= 1u << axis;
  prepare(labels, all, 0);
  // Without free axes every node has one option, or pins leave none.
  const std::vector<std::int32_t> choice = choice_of(labels);
  return choice.empty() ? not_allowed : cost_of(choice);
}

/// Equal for networks that are equal: with the same options and prices.
std::uint64_t LevelSolver::identity() const {
  std::uint64_t hash = costs_.prices_id();
  const auto add = [&hash](std::uint64_t number) {
    hash = (hash ^ number) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 32;
  };
  for (std::int32_t domain : domain_of_) add(static_cast<std::uint64_t>(domain));
  for (std::int32_t options : options_of_) add(static_cast<std::uint64_t>(options));
  return hash;
}

LevelResult LevelSolver::solve(Labels& labels, AxisMask decided, AxisMask free,
                               const Rounds& rounds, std::uint64_t seed, bool improve) {
  prepare(labels, decided, free);
  const std::size_t num_nodes = classes_.holders.size() + classes_.ops.size();
  // A program of scalars alone leaves nothing to decide.
  if (num_nodes == 0) return {0, 0};
  const std::vector<std::int32_t> choice =
      improve ? choice_of(labels) : std::vector<std::int32_t>();
  const std::int64_t most_rounds = rounds_for(rounds, static_cast<std::int64_t>(num_nodes));
  Solved& solved = solved_[identity()];
  // A network comes back where a sweep changed nothing else, or on a mesh of one axis.
  const bool is_known = !solved.choice.empty() &&
                        (solved.rounds == 0 || 2 * solved.rounds >= most_rounds) &&
                        (choice.empty() || choice == solved.choice ||
                         solved.result.objective <= cost_of(choice));
  if (!is_known) {
    build();
    solver::Options options;
    options.seed = seed;
    options.gap = relative_gap;
    // By iterations alone, so that a program has one plan on every machine.
    options.seconds = std::numeric_limits<double>::max();
    options.max_iterations = most_rounds;
    options.exact_operations = rounds.exact_operations;
    if (!choice.empty()) options.start = &choice;
    options.known_messages = &messages_[static_cast<std::uint64_t>(decided) << 32 | free];
    solver::Solution solution = solver::solve(problem_, options);
    give_back_tables();
    rounds_ += solution.iterations;
    if (solution.choice.empty() || !std::isfinite(solution.cost)) {
      throw Contradiction("no plan satisfies all pins together", -1, -1);
    }
    const bool has_ended = solution.stop_reason != solver::StopReason::kIterationLimit;
    solved = {std::move(solution.choice),
              {solution.cost, solution.lower_bound},
              has_ended ? 0 : most_rounds};
  }
  const auto first_op = classes_.holders.size();
  for (std::size_t h = 0; h < classes_.holders.size(); ++h) {
    labels.holders[h] = store_.domain_at(domain_of_[h]).shardings[solved.choice[h]];
  }
  for (std::size_t o = 0; o < classes_.ops.size(); ++o) {
    labels.ops[o] = store_.options_at(options_of_[o]).strategies[solved.choice[first_op + o]];
  }
  return solved.result;
}

LevelSolver::Messages LevelSolver::messages_of_axes() const {
  Messages found;
  for (const auto& [id, messages] : messages_) {
    if (std::has_single_bit(static_cast<std::uint32_t>(id))) found.emplace(id, messages);
  }
  return found;
}

void LevelSolver::begin_with(const Messages& known,
                             const std::vector<std::int32_t>& node_there) {
  messages_ = known;
  for (auto& [id, messages] : messages_) messages.nodes = node_there;
}

double LevelSolver::least_of_ops(const Labels& labels, AxisMask free) {
  prepare(labels, 0, free);
  double total = 0;
  for (std::size_t o = 0; o < classes_.ops.size(); ++o) {
    const std::vector<double>& costs = store_.options_at(options_of_[o]).costs;
    total += classes_.ops[o].trips * *std::min_element(costs.begin(), costs.end());
  }
  // Adding up may round up.
  return total * (1 - 1e-12);
}

double LevelSolver::most_options(AxisMask free) const {
  double most = 1;
  for (const OpKind& kind : classes_.kinds) {
    double options = 1;
    for (int axis = 0; axis < mesh_.rank(); ++axis) {
      if (!((free >> axis) & 1u)) continue;
      const std::int64_t size = mesh_.axis_sizes[axis];
      double ways = 1;
      for (const Factor& factor : program_.rules[kind.rule].factors) {
        ways += factor.kind != FactorKind::need_replication && factor.size % size == 0;
      }
      options *= ways;
    }
    most = std::max(most, options);
  }
  return most;
}

}  // namespace autoshard::planning
