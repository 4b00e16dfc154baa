#include "planning/option_store.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "cost/compute.h"

namespace autoshard::planning {
namespace {

/// What was made for a choice of `owner`, a type or a kind of op. Choices that differ in free
/// axes only share it: `base_of` says what is left of one without them, `make` makes what is
/// new.
template <typename Base, typename Make>
std::int32_t shared(std::unordered_map<std::uint64_t, std::int32_t>& made, std::int32_t owner,
                    std::int32_t choice, AxisMask free, const Base& base_of,
                    const Make& make) {
  const auto id = [&](std::int32_t of) {
    return (static_cast<std::uint64_t>(owner) << 40) | (static_cast<std::uint64_t>(of) << 16) |
           free;
  };
  if (const auto known = made.find(id(choice)); known != made.end()) return known->second;
  const std::int32_t base = base_of();
  const auto known = made.find(id(base));
  const std::int32_t found = known != made.end() ? known->second : make(base);
  made.try_emplace(id(base), found);
  made.try_emplace(id(choice), found);
  return found;
}

std::uint64_t move_id(std::int32_t from, std::int32_t to, AxisMask partial) {
  return (static_cast<std::uint64_t>(from) << 40) | (static_cast<std::uint64_t>(to) << 16) |
         partial;
}

}  // namespace

OptionStore::OptionStore(const Program& program, const Mesh& mesh, const Classes& classes,
                         const Costs& costs, const AxisOrders& orders)
    : program_(program),
      mesh_(mesh),
      classes_(classes),
      costs_(costs),
      orders_(orders),
      shardings_(program.types.size()),
      strategies_(classes.signatures.size()) {}

std::int32_t OptionStore::intern(std::int32_t type, const Sharding& sharding) {
  Shardings& known = shardings_[type];
  return known.index.find_or_insert(
      AxisListsHash{}(sharding.dims), [&](int s) { return known.list[s] == sharding; },
      [&] {
        known.list.push_back(sharding);
        return static_cast<int>(known.list.size()) - 1;
      });
}

std::int32_t OptionStore::intern_strategy(std::int32_t signature, const FactorAxes& axes) {
  Strategies& known = strategies_[signature];
  return known.index.find_or_insert(
      AxisListsHash{}(axes), [&](int s) { return known.list[s] == axes; },
      [&] {
        known.list.push_back(axes);
        return static_cast<int>(known.list.size()) - 1;
      });
}

double OptionStore::new_cost_between(std::int32_t type, std::int32_t from, std::int32_t to) {
  Shardings& known = shardings_[type];
  if (known.list.size() > known.stride) {
    // Doubled, so that growing costs no more than filling.
    const std::size_t stride = std::max<std::size_t>(8, std::bit_ceil(known.list.size()));
    std::vector<double> costs(stride * stride, std::numeric_limits<double>::quiet_NaN());
    for (std::size_t row = 0; row < known.stride; ++row) {
      std::copy_n(known.costs.begin() + static_cast<std::ptrdiff_t>(row * known.stride),
                  known.stride, costs.begin() + static_cast<std::ptrdiff_t>(row * stride));
    }
    known.costs = std::move(costs);
    known.stride = stride;
  }
  double& cost = known.costs[static_cast<std::size_t>(from) * known.stride + to];
  cost = costs_.reshard(program_.types[type], known.list[from], known.list[to], 0);
  return cost;
}

double OptionStore::new_shared_cost(std::int32_t type, std::int32_t from, std::int32_t to,
                                    AxisMask partial, std::int32_t together) {
  Shardings& known = shardings_[type];
  auto [entry, is_new] =
      known.shared_costs[together].try_emplace(move_id(from, to, partial), 0.0);
  if (is_new) {
    entry->second = costs_.shared(program_.types[type], known.list[from], known.list[to],
                                  partial, together);
  }
  return entry->second;
}

double OptionStore::partial_cost_between(std::int32_t type, std::int32_t from, std::int32_t to,
                                         AxisMask partial) {
  Shardings& known = shardings_[type];
  auto [entry, is_new] = known.partial_costs.try_emplace(move_id(from, to, partial), 0.0);
  if (is_new) {
    entry->second =
        costs_.reshard(program_.types[type], known.list[from], known.list[to], partial);
  }
  return entry->second;
}

std::int32_t OptionStore::domain(std::int32_t type, std::int32_t sharding, AxisMask free) {
  return shared(
      domain_index_, type, sharding, free,
      [&] { return intern(type, without(shardings_[type].list[sharding], free)); },
      [&](std::int32_t base) {
        const Sharding start = shardings_[type].list[base];
        Domain made{type, {}};
        for (const Sharding& s :
             extensions(program_.types[type].dims, start, free, mesh_, orders_)) {
          made.shardings.push_back(intern(type, s));
        }
        domains_.push_back(std::move(made));
        return static_cast<std::int32_t>(domains_.size()) - 1;
      });
}

std::int32_t OptionStore::restricted_domain(std::int32_t type,
                                            std::vector<std::int32_t> shardings) {
  std::string id = std::to_string(type) + "!";
  for (std::int32_t s : shardings) id += std::to_string(s) + ",";
  auto [entry, is_new] =
      restricted_index_.try_emplace(id, static_cast<std::int32_t>(domains_.size()));
  if (is_new) domains_.push_back({type, std::move(shardings)});
  return entry->second;
}

std::int32_t OptionStore::options_for(std::int32_t signature, std::int32_t strategy,
                                      AxisMask free) {
  return shared(
      options_index_, signature, strategy, free,
      [&] {
        return intern_strategy(signature,
                               without(strategies_[signature].list[strategy], free));
      },
      [&](std::int32_t base) {
        op_options_.push_back(
            options_from(signature, strategies_[signature].list[base], free));
        return static_cast<std::int32_t>(op_options_.size()) - 1;
      });
}

OptionStore::OpOptions OptionStore::options_from(std::int32_t signature, FactorAxes start,
                                                 AxisMask free) {
  const Rule& rule = program_.rules[classes_.signatures[signature].rule];
  const std::vector<FactorAxes> all =
      extensions(rule, program_.types, start, free, mesh_, orders_);
  OpOptions made;
  made.operands.resize(rule.operands.size());
  made.results.resize(rule.results.size());
  for (auto* tensors : {&made.operands, &made.results}) {
    for (std::vector<std::int32_t>& shardings : *tensors) shardings.reserve(all.size());
  }
  made.strategies.reserve(all.size());
  made.partial.reserve(all.size());
  made.costs.reserve(all.size());
  for (const FactorAxes& axes : all) {
    made.strategies.push_back(intern_strategy(signature, axes));
    const auto add = [&](const RuleTensor& tensor, std::vector<std::int32_t>& list) {
      list.push_back(tensor.type == no_type ? -1 : intern(tensor.type, project(tensor, axes)));
    };
    for (std::size_t k = 0; k < rule.operands.size(); ++k)
      add(rule.operands[k], made.operands[k]);
    for (std::size_t k = 0; k < rule.results.size(); ++k)
      add(rule.results[k], made.results[k]);
    made.partial.push_back(partial_axes(rule, axes));
    made.costs.push_back(costs_.op(classes_.signatures[signature], start, axes));
  }
  return made;
}

/// Cost of scattering the sums of a result that an op makes as `made` and that is held as
/// `held`.
double OptionStore::scattering(const Use& use, std::int32_t strategy, std::int32_t made,
                               std::int32_t held) {
  const std::int32_t signature = classes_.ops[use.op].signature,
                     type = classes_.values[use.sharding_class].type;
  Strategies& known = strategies_[signature];
  const std::uint64_t id = (static_cast<std::uint64_t>(strategy) << 40) |
                           (static_cast<std::uint64_t>(held) << 16) |
                           static_cast<std::uint64_t>(use.position);
  auto [entry, is_new] = known.scattering.try_emplace(id, 0.0);
  if (is_new) {
    entry->second =
        costs_.scattering(classes_.signatures[signature], known.list[strategy],
                          shardings_[type].list[made], shardings_[type].list[held]);
  }
  return entry->second;
}

double OptionStore::flow_cost(std::int32_t type, std::int32_t from, std::int32_t other,
                              std::int32_t to, std::int32_t together) {
  // Both ends have one shape; the element type may differ only in its name.
  const std::int32_t target = type == other ? to : intern(type, shardings_[other].list[to]);
  return cost_between(type, from, target) - shared_cost(type, from, target, 0, together);
}

double OptionStore::copied_bytes(std::int32_t type, std::int32_t from, std::int32_t to) const {
  const std::vector<Sharding>& known = shardings_[type].list;
  if (only_cuts(known[from], known[to])) return 0;
  return program_.types[type].bytes() / static_cast<double>(num_shards(known[to], mesh_));
}

/// Whether an op with this option leaves parts of what a loop adds up.
bool OptionStore::is_once(std::int32_t sum, const OpOptions& op, std::int32_t option) {
  const AxisMask partial = op.partial[option];
  if (partial == 0) return false;
  const std::int32_t signature = classes_.ops[classes_.sums[sum].op].signature;
  const std::int32_t strategy = op.strategies[option];
  auto [entry, is_new] = strategies_[signature].reduced.try_emplace(strategy, 0.0);
  if (is_new) {
    entry->second = costs_.least_reduced(classes_.signatures[signature],
                                         strategies_[signature].list[strategy]);
  }
  const std::int32_t type =
      program_.rules[classes_.signatures[signature].rule].results[0].type;
  const Sharding& made = shardings_[type].list[op.results[0][option]];
  const double bytes =
      program_.types[type].bytes() / static_cast<double>(num_shards(made, mesh_));
  return costs_.is_once(sum, entry->second, bytes,
                        bytes / static_cast<double>(devices_along(partial, mesh_)));
}

double OptionStore::parts_cost(std::int32_t sum, std::int32_t type, std::int32_t sharding,
                               const OpOptions& op, std::int32_t option) {
  if (!is_once(sum, op, option)) return 0;
  const std::int32_t signature = classes_.ops[classes_.sums[sum].op].signature;
  const std::int32_t made =
      program_.rules[classes_.signatures[signature].rule].results[0].type;
  const double parts =
      static_cast<double>(num_shards(shardings_[made].list[op.results[0][option]], mesh_));
  const double held = static_cast<double>(num_shards(shardings_[type].list[sharding], mesh_));
  return costs_.parts(sum, more_of_part(program_.types[made].bytes(), parts, held));
}

double OptionStore::sliced_bytes(std::int32_t type, std::int32_t from, std::int32_t other,
                                 std::int32_t to) const {
  const Sharding &source = shardings_[type].list[from], &target = shardings_[other].list[to];
  if (source == target || !only_cuts(source, target)) return 0;
  return program_.types[type].bytes() / static_cast<double>(num_shards(target, mesh_));
}

}  // namespace autoshard::planning
