#include "planning/level_network.h"

#include <utility>

namespace autoshard::planning {
namespace {

constexpr double not_allowed = solver::kNotAllowed;

/// `what`: which of the tables of a use.
std::uint64_t use_id(const Use& use, const LevelOptions& level, unsigned what) {
  return (static_cast<std::uint64_t>(level.domains[use.sharding_class]) << 40) |
         (static_cast<std::uint64_t>(level.ops[use.op]) << 16) |
         (static_cast<std::uint64_t>(use.position) << 2) | what;
}

std::uint64_t flow_id(std::int32_t source, std::int32_t target) {
  return (1ull << 63) | (static_cast<std::uint64_t>(source) << 31) |
         static_cast<std::uint64_t>(target);
}

std::uint64_t copy_id(std::int32_t source, std::int32_t target) {
  return (1ull << 62) | flow_id(source, target);
}

std::uint64_t slice_id(std::int32_t source, std::int32_t target) {
  return (1ull << 30) | copy_id(source, target);
}

}  // namespace

NetworkBuilder::NetworkBuilder(const Classes& classes, const Costs& costs, OptionStore& store)
    : classes_(classes), costs_(costs), store_(store) {}

/// A table that is made once: `cost(s, c)` for every sharding s in `rows` and column c.
template <typename Cost>
std::int32_t NetworkBuilder::table(const TableKey& key, const std::vector<std::int32_t>& rows,
                                   std::size_t cols, const Cost& cost) {
  auto [entry, is_new] =
      table_index_.try_emplace(key, static_cast<std::int32_t>(tables_.size()));
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

/// Reshard costs, the options of the sharding class by those of the op. Partial sums are
/// reduced and resharded on the way from the op to its result.
std::int32_t NetworkBuilder::use_table(const Use& use, const LevelOptions& level) {
  const OpOptions& op = store_.options_at(level.ops[use.op]);
  TableKey key{use_id(use, level, (use.is_result ? 2u : 0u) | (use.is_kept ? 1u : 0u)),
               classes_.values[use.sharding_class].together};
  // Whether sums are reduced behind a loop depends on the price of the memory they take.
  if (use.sum >= 0) key = {key.first ^ costs_.prices_id(), -1 - 2 * use.sum};
  return table(key, store_.domain_at(level.domains[use.sharding_class]).shardings,
               op.strategies.size(),
               [&](std::int32_t s, std::int32_t o) { return store_.use_cost(use, s, op, o); });
}

/// What parts of sums cost, the options of the sums' class by those of the op that makes them.
std::int32_t NetworkBuilder::parts_table(std::int32_t sum, const LevelOptions& level) {
  const ClassSum& of = classes_.sums[sum];
  const Domain& held = store_.domain_at(level.domains[of.sharding_class]);
  const OpOptions& op = store_.options_at(level.ops[of.op]);
  const std::uint64_t id = flow_id(level.domains[of.sharding_class], level.ops[of.op]);
  return table({id ^ costs_.prices_id(), -2 - 2 * sum}, held.shardings, op.strategies.size(),
               [&](std::int32_t s, std::int32_t o) {
                 return store_.parts_cost(sum, held.type, s, op, o);
               });
}

/// Bytes on a device that an op has otherwise than they are held, the options of the sharding
/// class by those of the op.
std::int32_t NetworkBuilder::transient_table(const Use& use, const LevelOptions& level) {
  const OpOptions& op = store_.options_at(level.ops[use.op]);
  return table(
      {use_id(use, level, 3u), use.is_result ? 2 : 1},
      store_.domain_at(level.domains[use.sharding_class]).shardings, op.strategies.size(),
      [&](std::int32_t s, std::int32_t o) { return store_.transient_bytes(use, s, op, o); });
}

/// The same of what a collective makes of a result.
std::int32_t NetworkBuilder::made_table(const Use& use, const LevelOptions& level) {
  const OpOptions& op = store_.options_at(level.ops[use.op]);
  return table(
      {use_id(use, level, 3u), 3},
      store_.domain_at(level.domains[use.sharding_class]).shardings, op.strategies.size(),
      [&](std::int32_t s, std::int32_t o) { return store_.made_bytes(use, s, op, o); });
}

/// Reshard costs, the options of the source's domain by those of the target's.
std::int32_t NetworkBuilder::flow_table(std::int32_t source, std::int32_t target,
                                        std::int32_t together) {
  const Domain &from = store_.domain_at(source), &to = store_.domain_at(target);
  return table({flow_id(source, target), together}, from.shardings, to.shardings.size(),
               [&](std::int32_t s, std::int32_t t) {
                 return store_.flow_cost(from.type, s, to.type, to.shardings[t], together);
               });
}

/// Bytes of a copy on a device, the options of its source's domain by those of its own.
std::int32_t NetworkBuilder::copy_table(std::int32_t source, std::int32_t target) {
  const Domain &from = store_.domain_at(source), &to = store_.domain_at(target);
  return table({copy_id(source, target), 1}, from.shardings, to.shardings.size(),
               [&](std::int32_t s, std::int32_t t) {
                 return store_.copied_bytes(from.type, s, to.shardings[t]);
               });
}

/// Bytes of a slice on a device, the options of the source's domain by those of the target's.
std::int32_t NetworkBuilder::slice_table(std::int32_t source, std::int32_t target) {
  const Domain &from = store_.domain_at(source), &to = store_.domain_at(target);
  return table({slice_id(source, target), 1}, from.shardings, to.shardings.size(),
               [&](std::int32_t s, std::int32_t t) {
                 return store_.sliced_bytes(from.type, s, to.type, to.shardings[t]);
               });
}

/// Moves a table into the network being built, unless it is there; returns its index there.
std::int32_t NetworkBuilder::index_in_network(std::int32_t table) {
  if (static_cast<std::size_t>(table) >= index_in_network_.size()) {
    index_in_network_.resize(tables_.size(), -1);
  }
  if (index_in_network_[table] < 0) {
    index_in_network_[table] = network_.add_table(std::move(tables_[table]));
    tables_in_network_.push_back(table);
  }
  return index_in_network_[table];
}

void NetworkBuilder::take_back() {
  for (std::size_t t = 0; t < tables_in_network_.size(); ++t) {
    tables_[tables_in_network_[t]] = std::move(network_.tables[t]);
  }
  tables_in_network_.clear();
  network_.tables.clear();
}

void NetworkBuilder::add_nodes(const LevelOptions& level) {
  std::vector<double> costs;
  for (std::size_t c = 0; c < level.domains.size(); ++c) {
    const Domain& options = store_.domain_at(level.domains[c]);
    costs.clear();
    for (std::int32_t s : options.shardings) {
      costs.push_back(
          costs_.held(static_cast<std::int32_t>(c), store_.sharding(options.type, s)));
    }
    network_.add_node(costs);
  }
  for (std::size_t o = 0; o < level.ops.size(); ++o) {
    costs = store_.options_at(level.ops[o]).costs;
    for (double& cost : costs) cost *= classes_.ops[o].trips;
    network_.add_node(costs);
  }
}

const solver::Problem& NetworkBuilder::build(const LevelOptions& level) {
  network_ = {};
  index_in_network_.assign(tables_.size(), -1);
  add_nodes(level);
  const auto first_op = static_cast<std::int32_t>(level.domains.size());
  for (const Use& use : classes_.uses) {
    const std::int32_t op = first_op + use.op;
    network_.add_edge(use.sharding_class, op, index_in_network(use_table(use, level)),
                      use.trips);
    if (use.is_kept) continue;
    const double price = costs_.transient(use);
    if (price > 0) {
      network_.add_edge(use.sharding_class, op, index_in_network(transient_table(use, level)),
                        price);
    }
    const double made = use.is_result ? costs_.made(use) : 0;
    if (made > 0) {
      network_.add_edge(use.sharding_class, op, index_in_network(made_table(use, level)),
                        made);
    }
  }
  for (std::size_t n = 0; n < classes_.sums.size(); ++n) {
    const ClassSum& sum = classes_.sums[n];
    network_.add_edge(sum.sharding_class, first_op + sum.op,
                      index_in_network(parts_table(static_cast<std::int32_t>(n), level)), 1);
  }
  for (std::size_t f = 0; f < classes_.flows.size(); ++f) {
    const Flow& flow = classes_.flows[f];
    const std::int32_t source = level.domains[flow.source],
                       target = level.domains[flow.target];
    network_.add_edge(
        flow.source, flow.target,
        index_in_network(flow_table(source, target, classes_.values[flow.source].together)),
        flow.trips);
    const double price = costs_.copy(f);
    if (price > 0) {
      network_.add_edge(flow.source, flow.target, index_in_network(copy_table(source, target)),
                        price);
    }
    const double stored = flow.stored * costs_.stored_slice();
    if (stored > 0) {
      network_.add_edge(flow.source, flow.target,
                        index_in_network(slice_table(source, target)), stored);
    }
  }
  return network_;
}

double NetworkBuilder::cost_of(const LevelOptions& level,
                               const std::vector<std::int32_t>& choice) {
  const std::size_t first_op = level.domains.size();
  long double total = 0;
  for (std::size_t c = 0; c < first_op; ++c) {
    const Domain& options = store_.domain_at(level.domains[c]);
    total += costs_.held(static_cast<std::int32_t>(c),
                         store_.sharding(options.type, options.shardings[choice[c]]));
  }
  for (std::size_t o = 0; o < level.ops.size(); ++o) {
    total +=
        store_.options_at(level.ops[o]).costs[choice[first_op + o]] * classes_.ops[o].trips;
  }
  for (const Use& use : classes_.uses) {
    const Domain& options = store_.domain_at(level.domains[use.sharding_class]);
    const std::int32_t s = options.shardings[choice[use.sharding_class]];
    const OpOptions& op = store_.options_at(level.ops[use.op]);
    const std::int32_t option = choice[first_op + static_cast<std::size_t>(use.op)];
    const double cost = store_.use_cost(use, s, op, option);
    if (cost == not_allowed) return not_allowed;
    total += use.trips * cost;
    if (use.is_kept) continue;
    const double price = costs_.transient(use);
    if (price > 0) total += price * store_.transient_bytes(use, s, op, option);
    const double made = use.is_result ? costs_.made(use) : 0;
    if (made > 0) total += made * store_.made_bytes(use, s, op, option);
  }
  for (std::size_t n = 0; n < classes_.sums.size(); ++n) {
    const ClassSum& sum = classes_.sums[n];
    const Domain& held = store_.domain_at(level.domains[sum.sharding_class]);
    total += store_.parts_cost(static_cast<std::int32_t>(n), held.type,
                               held.shardings[choice[sum.sharding_class]],
                               store_.options_at(level.ops[sum.op]),
                               choice[first_op + static_cast<std::size_t>(sum.op)]);
  }
  for (std::size_t f = 0; f < classes_.flows.size(); ++f) {
    const Flow& flow = classes_.flows[f];
    const Domain& source = store_.domain_at(level.domains[flow.source]);
    const Domain& target = store_.domain_at(level.domains[flow.target]);
    const std::int32_t from = source.shardings[choice[flow.source]];
    const std::int32_t to = target.shardings[choice[flow.target]];
    total += flow.trips * store_.flow_cost(source.type, from, target.type, to,
                                           classes_.values[flow.source].together);
    const double price = costs_.copy(f);
    if (price > 0) total += price * store_.copied_bytes(source.type, from, to);
    const double stored = flow.stored * costs_.stored_slice();
    if (stored > 0) total += stored * store_.sliced_bytes(source.type, from, target.type, to);
  }
  return static_cast<double>(total);
}

}  // namespace autoshard::planning
