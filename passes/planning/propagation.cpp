#include "planning/propagation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <unordered_set>

namespace autoshard::planning {
namespace {

constexpr double tie_per_byte = 1.0 / (1 << 20);
/// A partial sum of rank 0, such as a loss: 4 bytes, all of its cost is latency.
const TensorType scalar_type{{}, 32};
/// The solver stops when it has proved to be this close to the least cost.
constexpr double relative_gap = 1e-4;
/// Rounds of message passing for networks too wide to be solved exactly: the first time an
/// axis is decided, when it is decided again, and when all axes are decided together from a
/// plan. Fewer where rounds times nodes would be more than `node_rounds`.
struct Rounds {
  std::int64_t fewest, most, node_rounds;

  std::int64_t of(const solver::Problem& problem) const {
    return std::clamp(node_rounds / std::max<std::int64_t>(problem.nodes(), 1), fewest, most);
  }
};
constexpr Rounds first_rounds{30, 300, 10'000'000};
constexpr Rounds sweep_rounds{10, 10, 0};
constexpr Rounds joint_rounds{10, 100, 5'000'000};
constexpr double not_allowed = std::numeric_limits<double>::infinity();

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Bytes and launches that cutting the permutation factors of `rule` as `axes` costs.
double halo_cost(const Rule& rule, const std::vector<TensorType>& types,
                 const FactorAxes& axes, const Mesh& mesh) {
  double total = 0;
  for (std::size_t f = 0; f < rule.factors.size(); ++f) {
    const Factor& factor = rule.factors[f];
    if (factor.kind != FactorKind::permutation || axes[f].empty() || factor.halo == 0)
      continue;
    const double block =
        static_cast<double>(factor.size) / static_cast<double>(num_shards(axes[f], mesh));
    const double share = factor.halo < 0 ? 1.0 : static_cast<double>(factor.halo) / block;
    for (const RuleTensor& tensor : rule.operands) {
      for (const auto& factors : tensor.dims) {
        if (std::find(factors.begin(), factors.end(), static_cast<std::int32_t>(f)) ==
            factors.end()) {
          continue;
        }
        const double local = types[tensor.type].bytes() /
                             static_cast<double>(num_shards(project(tensor, axes), mesh));
        total += share * local + bytes_per_collective;
      }
    }
  }
  return total;
}

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

/// The network of one group of mesh axes, all other axes staying as `plan` has them.
class Level {
 public:
  Level(const Program& program, const AxisOrders& orders, AxisMask decided, AxisMask free)
      : program_(program),
        orders_(orders),
        known_(decided | free),
        free_(free),
        shardings_(program.types.size()) {}

  solver::Problem network(const Plan& plan) {
    build(plan);
    return std::move(problem_);
  }

  /// Solves the network and moves `plan` to the choice found. With `improve` the search starts
  /// from `plan`, which must be a plan of all axes, and never leaves it for a worse one.
  void run(Plan& plan, std::uint64_t seed, const Rounds& rounds, bool improve) {
    const auto start = std::chrono::steady_clock::now();
    build(plan);
    plan.build_seconds += seconds_since(start);
    const auto built = std::chrono::steady_clock::now();
    const std::vector<std::int32_t> choice =
        improve ? choice_of(plan) : std::vector<std::int32_t>();
    solver::Options options;
    options.seed = seed;
    options.gap = relative_gap;
    // By iterations alone, so that a program has one plan on every machine.
    options.seconds = std::numeric_limits<double>::max();
    options.max_iterations = rounds.of(problem_);
    if (!choice.empty()) options.start = &choice;
    const solver::Solution solution = solver::solve(problem_, options);
    plan.solve_seconds += seconds_since(built);
    plan.network_nodes += problem_.nodes();
    plan.network_edges += problem_.edges();
    if (solution.choice.empty() || !std::isfinite(solution.cost)) {
      throw Contradiction("no plan satisfies all pins together", -1, -1);
    }
    plan.objective = solution.cost;
    plan.lower_bound = solution.lower_bound;
    for (std::size_t v = 0; v < program_.values.size(); ++v) {
      if (domain_of_[v] < 0) continue;
      const int option = value_node_[v] < 0 ? 0 : solution.choice[value_node_[v]];
      plan.values[v] =
          shardings_[program_.values[v].type].list[domains_[domain_of_[v]].shardings[option]];
    }
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      if (options_of_[i] < 0) continue;
      const int option = op_node_[i] < 0 ? 0 : solution.choice[op_node_[i]];
      plan.ops[i] = op_options_[options_of_[i]].axes[option];
    }
  }

 private:
  /// The options that `plan` takes; empty if it takes one that the network does not have.
  std::vector<std::int32_t> choice_of(const Plan& plan) {
    std::vector<std::int32_t> choice(problem_.nodes(), 0);
    const auto set = [&](int node, const auto& options, const auto& wanted) {
      const auto found = std::find(options.begin(), options.end(), wanted);
      if (found == options.end()) return false;
      if (node >= 0) choice[node] = static_cast<std::int32_t>(found - options.begin());
      return true;
    };
    for (std::size_t v = 0; v < program_.values.size(); ++v) {
      if (domain_of_[v] < 0) continue;
      const int sharding = intern(program_.values[v].type, plan.values[v]);
      if (!set(value_node_[v], domains_[domain_of_[v]].shardings, sharding)) return {};
    }
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      if (options_of_[i] < 0) continue;
      if (!set(op_node_[i], op_options_[options_of_[i]].axes, plan.ops[i])) return {};
    }
    return choice;
  }

  /// All shardings of one type seen so far, and what it costs to go between them.
  struct Shardings {
    std::vector<Sharding> list;
    std::unordered_map<std::string, int> index;
    std::unordered_map<std::uint64_t, double> costs;
  };
  struct Domain {
    std::int32_t type;
    std::vector<int> shardings;
  };
  struct OpOptions {
    std::vector<FactorAxes> axes;
    /// Indices into the type's shardings, one a tensor and option.
    std::vector<std::vector<int>> operands, results;
    std::vector<AxisMask> partial;
    std::vector<bool> scatters;
    /// Once: ties, halos and partial sums of rank 0.
    std::vector<double> costs;
  };

  int intern(std::int32_t type, const Sharding& sharding) {
    Shardings& known = shardings_[type];
    auto [entry, is_new] =
        known.index.try_emplace(key(sharding), static_cast<int>(known.list.size()));
    if (is_new) known.list.push_back(sharding);
    return entry->second;
  }

  double cost_between(std::int32_t type, int from, int to, AxisMask partial,
                      bool scatters = true) {
    if (from == to && partial == 0) return 0;
    Shardings& known = shardings_[type];
    const std::uint64_t id = (static_cast<std::uint64_t>(from) << 40) |
                             (static_cast<std::uint64_t>(to) << 17) |
                             (static_cast<std::uint64_t>(scatters) << 16) | partial;
    auto [entry, is_new] = known.costs.try_emplace(id, 0.0);
    if (is_new) {
      entry->second = cost(redistribution(program_.types[type], known.list[from],
                                          known.list[to], partial, program_.mesh, scatters));
    }
    return entry->second;
  }

  /// Does `pin` allow `sharding` as far as the axes known at this level go?
  bool allowed(const Pin& pin, const Sharding& sharding) const {
    Pin restricted = pin;
    std::vector<std::int64_t> missing;
    for (std::size_t d = 0; d < pin.dims.size(); ++d) {
      DimPin& dim = restricted.dims[d];
      if (dim.num_shards) {
        const std::int64_t blocks = num_shards(sharding.dims[d], program_.mesh);
        if (*dim.num_shards % blocks != 0) return false;
        missing.push_back(*dim.num_shards / blocks);
        dim = DimPin{{}, true, std::nullopt};
        continue;
      }
      std::erase_if(dim.axes, [this](AxisIndex axis) { return !((known_ >> axis) & 1u); });
    }
    if (!allows(restricted, sharding, program_.mesh)) return false;
    std::vector<std::int64_t> later;
    for (int axis = 0; axis < program_.mesh.rank(); ++axis) {
      if (!((known_ >> axis) & 1u)) later.push_back(program_.mesh.axis_sizes[axis]);
    }
    return dealable(missing, later, 0);
  }

  int domain(std::int32_t type, const Sharding& base) {
    const std::string id = std::to_string(type) + ":" + key(base);
    auto [entry, is_new] = domain_index_.try_emplace(id, static_cast<int>(domains_.size()));
    if (is_new) {
      Domain made{type, {}};
      for (const Sharding& s :
           extensions(program_.types[type].dims, base, free_, program_.mesh, orders_)) {
        made.shardings.push_back(intern(type, s));
      }
      domains_.push_back(std::move(made));
    }
    return entry->second;
  }

  /// A domain with only these shardings; equal ones are shared.
  int restricted_domain(std::int32_t type, std::vector<int> shardings) {
    std::string id = std::to_string(type) + "!";
    for (int s : shardings) id += std::to_string(s) + ",";
    auto [entry, is_new] = domain_index_.try_emplace(id, static_cast<int>(domains_.size()));
    if (is_new) domains_.push_back({type, std::move(shardings)});
    return entry->second;
  }

  int options_for(std::int32_t rule_index, const FactorAxes& base) {
    const std::string id = std::to_string(rule_index) + ":" + key(Sharding{base});
    auto [entry, is_new] =
        options_index_.try_emplace(id, static_cast<int>(op_options_.size()));
    if (!is_new) return entry->second;
    const Rule& rule = program_.rules[rule_index];
    OpOptions made;
    made.axes = extensions(rule, program_.types, base, free_, program_.mesh, orders_);
    made.operands.resize(rule.operands.size());
    made.results.resize(rule.results.size());
    for (const FactorAxes& axes : made.axes) {
      double local = 0, total = halo_cost(rule, program_.types, axes, program_.mesh);
      const AxisMask partial = partial_axes(rule, axes);
      const auto add = [&](const RuleTensor& tensor, std::vector<int>& list) {
        if (tensor.type == no_type) {
          list.push_back(-1);
          return;
        }
        const Sharding sharding = project(tensor, axes);
        list.push_back(intern(tensor.type, sharding));
        local += program_.types[tensor.type].bytes() /
                 static_cast<double>(num_shards(sharding, program_.mesh));
      };
      for (std::size_t k = 0; k < rule.operands.size(); ++k)
        add(rule.operands[k], made.operands[k]);
      for (std::size_t k = 0; k < rule.results.size(); ++k) {
        add(rule.results[k], made.results[k]);
        if (rule.results[k].type == no_type && partial != 0) {
          total += cost(redistribution(scalar_type, {}, {}, partial, program_.mesh));
        }
      }
      made.partial.push_back(partial);
      made.scatters.push_back(may_scatter(rule, axes));
      made.costs.push_back(total + tie_per_byte * local);
    }
    op_options_.push_back(std::move(made));
    return entry->second;
  }

  bool has_node(std::int32_t value) const {
    return value != no_value && !program_.values[value].is_free;
  }

  void make_domains(const Plan& plan) {
    domain_of_.assign(program_.values.size(), -1);
    for (std::size_t v = 0; v < program_.values.size(); ++v) {
      if (program_.values[v].is_free) continue;
      domain_of_[v] = domain(program_.values[v].type, without(plan.values[v], free_));
    }
    for (const Pin& pin : program_.pins) {
      if (!has_node(pin.value)) continue;
      const std::int32_t type = program_.values[pin.value].type;
      // What the user wants may be an order of axes that no option has: it becomes one.
      Sharding exact{std::vector<AxisList>(pin.dims.size())};
      for (std::size_t d = 0; d < pin.dims.size(); ++d) {
        for (AxisIndex axis : pin.dims[d].axes) {
          if ((known_ >> axis) & 1u) exact.dims[d].push_back(axis);
        }
      }
      std::vector<int> candidates = domains_[domain_of_[pin.value]].shardings;
      const int wanted = intern(type, exact);
      const bool first_pin = !pinned_[pin.value];
      pinned_[pin.value] = true;
      if (first_pin &&
          std::find(candidates.begin(), candidates.end(), wanted) == candidates.end()) {
        candidates.push_back(wanted);
      }
      std::erase_if(candidates,
                    [&](int s) { return !allowed(pin, shardings_[type].list[s]); });
      if (candidates.empty()) {
        throw Contradiction("the pins of one value allow no common sharding", -1, pin.value);
      }
      domain_of_[pin.value] = restricted_domain(type, std::move(candidates));
    }
  }

  /// Options of `op` that take their kept operands as the pins have them.
  void check_kept(std::size_t i, const std::vector<bool>& feeds_kept) {
    const Op& op = program_.ops[i];
    if (std::find(op.kept_operands.begin(), op.kept_operands.end(), true) ==
        op.kept_operands.end()) {
      return;
    }
    const OpOptions& options = op_options_[options_of_[i]];
    std::vector<int> fitting;
    for (std::size_t o = 0; o < options.axes.size(); ++o) {
      bool fits = true;
      for (std::size_t k = 0; k < op.operands.size() && fits; ++k) {
        if (!op.kept_operands[k] || !has_node(op.operands[k])) continue;
        const auto& shardings = domains_[domain_of_[op.operands[k]]].shardings;
        fits = std::find(shardings.begin(), shardings.end(), options.operands[k][o]) !=
               shardings.end();
      }
      if (fits) fitting.push_back(static_cast<int>(o));
    }
    if (fitting.empty()) {
      throw Contradiction("no strategy of the op fits its pinned operands",
                          static_cast<std::int32_t>(i), -1);
    }
    for (std::size_t k = 0; k < op.results.size(); ++k) {
      const std::int32_t value = op.results[k];
      if (!has_node(value) || !feeds_kept[value]) continue;
      std::vector<int> images;
      for (int o : fitting) images.push_back(options.results[k][o]);
      std::sort(images.begin(), images.end());
      images.erase(std::unique(images.begin(), images.end()), images.end());
      domain_of_[value] = restricted_domain(program_.values[value].type, std::move(images));
    }
  }

  /// Redistribution costs, value options by op options.
  int operand_table(int domain, int options, std::size_t k, bool kept) {
    return table(domain, options, 2 * k + 0, kept, [&](int s, std::size_t o) {
      const int required = op_options_[options].operands[k][o];
      if (kept) return s == required ? 0.0 : not_allowed;
      return cost_between(domains_[domain].type, s, required, 0);
    });
  }

  /// Partial sums are reduced and redistributed on the way from the op to its result.
  int result_table(int domain, int options, std::size_t k) {
    return table(domain, options, 2 * k + 1, false, [&](int s, std::size_t o) {
      return cost_between(domains_[domain].type, op_options_[options].results[k][o], s,
                          op_options_[options].partial[o], op_options_[options].scatters[o]);
    });
  }

  template <typename Cost>
  int table(int domain, int options, std::size_t position, bool kept, Cost cost) {
    const std::uint64_t id = (static_cast<std::uint64_t>(domain) << 40) |
                             (static_cast<std::uint64_t>(options) << 16) | (position << 1) |
                             (kept ? 1u : 0u);
    auto [entry, is_new] = table_index_.try_emplace(id, -1);
    if (is_new) {
      solver::Table made;
      made.rows = static_cast<std::int32_t>(domains_[domain].shardings.size());
      made.cols = static_cast<std::int32_t>(op_options_[options].axes.size());
      made.cost.reserve(static_cast<std::size_t>(made.rows) * made.cols);
      for (int s : domains_[domain].shardings) {
        for (std::int32_t o = 0; o < made.cols; ++o) made.cost.push_back(cost(s, o));
      }
      entry->second = problem_.add_table(std::move(made));
    }
    return entry->second;
  }

  int join_table(int source, int target) {
    const std::uint64_t id =
        (1ull << 63) | (static_cast<std::uint64_t>(source) << 31) | target;
    auto [entry, is_new] = table_index_.try_emplace(id, -1);
    if (is_new) {
      solver::Table made;
      made.rows = static_cast<std::int32_t>(domains_[source].shardings.size());
      made.cols = static_cast<std::int32_t>(domains_[target].shardings.size());
      const std::int32_t type = domains_[source].type;
      for (int s : domains_[source].shardings) {
        for (int t : domains_[target].shardings) {
          // Both ends have one shape; the element type may differ only in its name.
          const int same = intern(type, shardings_[domains_[target].type].list[t]);
          made.cost.push_back(cost_between(type, s, same, 0));
        }
      }
      entry->second = problem_.add_table(std::move(made));
    }
    return entry->second;
  }

  void build(const Plan& plan) {
    pinned_.assign(program_.values.size(), false);
    make_domains(plan);
    std::vector<bool> feeds_kept(program_.values.size(), false);
    for (const Op& op : program_.ops) {
      for (std::size_t k = 0; k < op.operands.size(); ++k) {
        if (op.kept_operands[k] && op.operands[k] != no_value)
          feeds_kept[op.operands[k]] = true;
      }
    }
    options_of_.assign(program_.ops.size(), -1);
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      const Op& op = program_.ops[i];
      const auto matters = [this](std::int32_t v) { return has_node(v); };
      if (std::none_of(op.operands.begin(), op.operands.end(), matters) &&
          std::none_of(op.results.begin(), op.results.end(), matters)) {
        continue;
      }
      options_of_[i] = options_for(op.rule, without(plan.ops[i], free_));
      check_kept(i, feeds_kept);
    }

    value_node_.assign(program_.values.size(), -1);
    for (std::size_t v = 0; v < program_.values.size(); ++v) {
      if (domain_of_[v] < 0) continue;
      const Domain& options = domains_[domain_of_[v]];
      std::vector<double> costs;
      const TensorType& type = program_.types[options.type];
      for (int s : options.shardings) {
        costs.push_back(
            tie_per_byte * type.bytes() /
            static_cast<double>(num_shards(shardings_[options.type].list[s], program_.mesh)));
      }
      value_node_[v] = problem_.add_node(costs);
    }
    op_node_.assign(program_.ops.size(), -1);
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      if (options_of_[i] < 0) continue;
      const Op& op = program_.ops[i];
      std::vector<double> costs = op_options_[options_of_[i]].costs;
      for (double& c : costs) c *= op.trips;
      op_node_[i] = problem_.add_node(costs);
      for (std::size_t k = 0; k < op.operands.size(); ++k) {
        const std::int32_t v = op.operands[k];
        if (!has_node(v)) continue;
        problem_.add_edge(value_node_[v], op_node_[i],
                          operand_table(domain_of_[v], options_of_[i], k, op.kept_operands[k]),
                          op.trips);
      }
      for (std::size_t k = 0; k < op.results.size(); ++k) {
        const std::int32_t v = op.results[k];
        if (!has_node(v)) continue;
        problem_.add_edge(value_node_[v], op_node_[i],
                          result_table(domain_of_[v], options_of_[i], k), op.trips);
      }
    }
    for (const Join& join : program_.joins) {
      if (!has_node(join.source) || !has_node(join.target)) continue;
      problem_.add_edge(value_node_[join.source], value_node_[join.target],
                        join_table(domain_of_[join.source], domain_of_[join.target]),
                        join.trips);
    }
  }

  const Program& program_;
  const AxisOrders& orders_;
  const AxisMask known_, free_;
  std::vector<Shardings> shardings_;
  std::vector<Domain> domains_;
  std::unordered_map<std::string, int> domain_index_;
  std::vector<OpOptions> op_options_;
  std::unordered_map<std::string, int> options_index_;
  std::unordered_map<std::uint64_t, int> table_index_;
  std::vector<int> domain_of_, options_of_, value_node_, op_node_;
  std::vector<bool> pinned_;
  solver::Problem problem_;
};

/// The axes on the factors of `tensor` that make it `sharding`, or nothing if no cut does.
std::optional<FactorAxes> lift(const Rule& rule, const RuleTensor& tensor,
                               const Sharding& sharding, const Mesh& mesh) {
  FactorAxes axes(rule.factors.size());
  for (std::size_t d = 0; d < tensor.dims.size(); ++d) {
    std::size_t at = 0;
    for (AxisIndex axis : sharding.dims[d]) {
      const auto fits = [&](std::int32_t f) {
        return rule.factors[f].kind != FactorKind::need_replication &&
               rule.factors[f].size % (num_shards(axes[f], mesh) * mesh.axis_sizes[axis]) == 0;
      };
      while (at < tensor.dims[d].size() && num_shards(axes[tensor.dims[d][at]], mesh) ==
                                               rule.factors[tensor.dims[d][at]].size) {
        ++at;
      }
      if (at == tensor.dims[d].size() || !fits(tensor.dims[d][at])) return std::nullopt;
      axes[tensor.dims[d][at]].push_back(axis);
    }
  }
  return axes;
}

/// Each free value is cut as the reader that cuts it most wants it; readers come later in
/// program order, so one walk backwards reaches all.
void decide_free_values(const Program& program, Plan& plan) {
  const auto offer = [&](std::int32_t value, const Sharding& wanted) {
    if (value == no_value || !program.values[value].is_free) return;
    if (num_shards(wanted, program.mesh) > num_shards(plan.values[value], program.mesh)) {
      plan.values[value] = wanted;
    }
  };
  for (const Join& join : program.joins) offer(join.source, plan.values[join.target]);
  for (std::size_t i = program.ops.size(); i-- > 0;) {
    const Op& op = program.ops[i];
    const Rule& rule = program.rules[op.rule];
    for (std::size_t k = 0; k < op.results.size(); ++k) {
      const std::int32_t value = op.results[k];
      if (value == no_value || !program.values[value].is_free) continue;
      if (auto axes = lift(rule, rule.results[k], plan.values[value], program.mesh)) {
        plan.ops[i] = *axes;
      } else {
        plan.values[value] = project(rule.results[k], plan.ops[i]);
      }
    }
    for (std::size_t k = 0; k < op.operands.size(); ++k) {
      if (op.operands[k] != no_value)
        offer(op.operands[k], project(rule.operands[k], plan.ops[i]));
    }
  }
}

/// Every place where a plan's shardings differ. Free values are copied, not redistributed, and
/// readers that want a value in one sharding share one copy: the first one's.
std::vector<PlannedRedistribution> redistributions_of(const Program& program,
                                                      const Plan& plan) {
  using Place = PlannedRedistribution::Place;
  std::vector<PlannedRedistribution> found;
  std::unordered_set<std::string> copies;
  const auto add = [&](Place place, std::size_t index, std::size_t position,
                       std::int32_t value, const Sharding& from, const Sharding& to,
                       AxisMask partial, double trips, bool scatters = true) {
    if (from == to && partial == 0) return;
    found.push_back({place, static_cast<std::int32_t>(index),
                     static_cast<std::int32_t>(position), value, from, to, partial,
                     redistribution(program.types[program.values[value].type], from, to,
                                    partial, program.mesh, scatters),
                     trips});
  };
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    const Rule& rule = program.rules[op.rule];
    const AxisMask partial = partial_axes(rule, plan.ops[i]);
    for (std::size_t k = 0; k < op.operands.size(); ++k) {
      const std::int32_t v = op.operands[k];
      if (v == no_value || program.values[v].is_free) continue;
      const Sharding wanted = project(rule.operands[k], plan.ops[i]);
      if (!copies.insert(std::to_string(v) + ":" + key(wanted)).second) continue;
      add(Place::operand, i, k, v, plan.values[v], wanted, 0, op.trips);
    }
    for (std::size_t k = 0; k < op.results.size(); ++k) {
      const std::int32_t v = op.results[k];
      if (v != no_value) {
        add(Place::result, i, k, v, project(rule.results[k], plan.ops[i]), plan.values[v],
            partial, op.trips, may_scatter(rule, plan.ops[i]));
      } else if (partial != 0) {
        found.push_back({Place::result,
                         static_cast<std::int32_t>(i),
                         static_cast<std::int32_t>(k),
                         no_value,
                         {},
                         {},
                         partial,
                         redistribution(scalar_type, {}, {}, partial, program.mesh),
                         op.trips});
      }
    }
  }
  for (std::size_t j = 0; j < program.joins.size(); ++j) {
    const Join& join = program.joins[j];
    if (program.values[join.source].is_free) continue;
    add(Place::join, j, 0, join.source, plan.values[join.source], plan.values[join.target], 0,
        join.trips);
  }
  return found;
}

/// The plan that splits nothing.
Plan unsplit(const Program& program) {
  Plan plan;
  for (const Value& value : program.values) {
    plan.values.push_back({std::vector<AxisList>(program.types[value.type].dims.size())});
  }
  for (const Op& op : program.ops) {
    plan.ops.emplace_back(program.rules[op.rule].factors.size());
  }
  return plan;
}

/// Upper bound on the options of one op when the axes in `group` are decided together.
double most_options(const Program& program, int group_size) {
  double most = 1;
  for (const Rule& rule : program.rules) {
    double cuttable = 1;
    for (const Factor& factor : rule.factors) {
      if (factor.kind != FactorKind::need_replication && factor.size > 1) cuttable += 1;
    }
    most = std::max(most, std::pow(cuttable, group_size));
  }
  return most;
}

/// All axes of the mesh.
AxisMask all_axes(const Program& program) {
  return static_cast<AxisMask>((1ull << program.mesh.rank()) - 1);
}

bool decided_together(const Program& program, const PropagationOptions& options) {
  return most_options(program, program.mesh.rank()) <=
         static_cast<double>(options.max_options);
}

/// One network an axis, outermost first, then again with the others as they are until nothing
/// improves.
Plan axis_by_axis(const Program& program, const AxisOrders& orders,
                  const PropagationOptions& options) {
  Plan plan = unsplit(program);
  AxisMask decided = 0;
  for (int axis = 0; axis < program.mesh.rank(); ++axis) {
    Level(program, orders, decided, 1u << axis).run(plan, options.seed, first_rounds, false);
    decided |= 1u << axis;
  }
  for (int sweep = 0; sweep < options.sweeps && program.mesh.rank() > 1; ++sweep) {
    const double before = plan.objective;
    for (int axis = 0; axis < program.mesh.rank(); ++axis) {
      Level(program, orders, decided & ~(1u << axis), 1u << axis)
          .run(plan, options.seed, sweep_rounds, true);
    }
    if (plan.objective >= before) break;
  }
  plan.levels = program.mesh.rank();
  return plan;
}

}  // namespace

solver::Problem first_network(const Program& program, const PropagationOptions& options) {
  check(program);
  const AxisOrders orders(program.mesh, program.pins);
  const AxisMask axes = decided_together(program, options) ? all_axes(program) : 1u;
  return Level(program, orders, 0, axes).network(unsplit(program));
}

Plan propagate(const Program& program, const PropagationOptions& options) {
  check(program);
  const AxisOrders orders(program.mesh, program.pins);
  const bool together = decided_together(program, options);
  Plan plan = unsplit(program);
  bool is_plan = false;
  if (program.mesh.rank() > 1 || !together) {
    try {
      plan = axis_by_axis(program, orders, options);
      is_plan = true;
    } catch (const Contradiction&) {
      // What one axis decided may leave no room for the next; all together have the last word.
      if (!together) throw;
    }
  }
  if (together) {
    Level(program, orders, 0, all_axes(program))
        .run(plan, options.seed, is_plan ? joint_rounds : first_rounds, is_plan);
    plan.levels = 1;
  }
  decide_free_values(program, plan);
  plan.redistributions = redistributions_of(program, plan);
  for (const PlannedRedistribution& r : plan.redistributions) {
    plan.redistributed_bytes += r.volume.bytes * r.trips;
  }
  verify(program, plan);
  return plan;
}

Sharding result_of(const Program& program, const Plan& plan, std::size_t op,
                   std::size_t result) {
  const Rule& rule = program.rules[program.ops[op].rule];
  const Sharding natural = project(rule.results[result], plan.ops[op]);
  const std::int32_t value = program.ops[op].results[result];
  if (value == no_value || partial_axes(rule, plan.ops[op]) == 0 ||
      !may_scatter(rule, plan.ops[op])) {
    return natural;
  }
  const Sharding& target = plan.values[value];
  return only_cuts(natural, target) ? target : natural;
}

void verify(const Program& program, const Plan& plan) {
  const auto check_sharding = [&](const Sharding& sharding, const TensorType& type,
                                  const std::string& where) {
    AxisMask seen = 0;
    if (sharding.dims.size() != type.dims.size()) throw std::logic_error("rank of " + where);
    for (std::size_t d = 0; d < sharding.dims.size(); ++d) {
      for (AxisIndex axis : sharding.dims[d]) {
        if (axis >= program.mesh.rank()) throw std::logic_error("unknown axis in " + where);
        if ((seen >> axis) & 1u) throw std::logic_error("axis twice in " + where);
        seen |= 1u << axis;
      }
      if (type.dims[d] % num_shards(sharding.dims[d], program.mesh) != 0) {
        throw std::logic_error("uneven split of " + where);
      }
    }
  };
  if (plan.values.size() != program.values.size() || plan.ops.size() != program.ops.size()) {
    throw std::logic_error("plan and program differ in size");
  }
  for (std::size_t v = 0; v < plan.values.size(); ++v) {
    check_sharding(plan.values[v], program.types[program.values[v].type],
                   "value " + std::to_string(v));
  }
  for (const Pin& pin : program.pins) {
    if (program.values[pin.value].is_free) continue;
    if (!allows(pin, plan.values[pin.value], program.mesh)) {
      throw std::logic_error("pin not kept at value " + std::to_string(pin.value));
    }
  }
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    const Rule& rule = program.rules[op.rule];
    const std::string where = "op " + std::to_string(i);
    for (std::size_t f = 0; f < rule.factors.size(); ++f) {
      if (rule.factors[f].kind == FactorKind::need_replication && !plan.ops[i][f].empty()) {
        throw std::logic_error("uncuttable factor cut at " + where);
      }
    }
    for (const auto* tensors : {&rule.operands, &rule.results}) {
      for (const RuleTensor& tensor : *tensors) {
        if (tensor.type == no_type) continue;
        check_sharding(project(tensor, plan.ops[i]), program.types[tensor.type], where);
      }
    }
    for (std::size_t k = 0; k < op.operands.size(); ++k) {
      const std::int32_t v = op.operands[k];
      if (!op.kept_operands[k] || v == no_value || program.values[v].is_free) continue;
      if (!(project(rule.operands[k], plan.ops[i]) == plan.values[v])) {
        throw std::logic_error("kept operand redistributed at " + where);
      }
    }
  }
}

}  // namespace autoshard::planning
