#include "planning/level_options.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace autoshard::planning {
namespace {

bool is_in(AxisMask axes, int axis) { return ((axes >> axis) & 1u) != 0; }

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

/// Does `pin` allow `sharding` as far as the axes in `known` go?
bool allowed(const Pin& pin, const Sharding& sharding, AxisMask known, const Mesh& mesh) {
  Pin restricted = pin;
  std::vector<std::int64_t> missing;
  for (std::size_t d = 0; d < pin.dims.size(); ++d) {
    DimPin& dim = restricted.dims[d];
    if (dim.num_shards) {
      const std::int64_t blocks = num_shards(sharding.dims[d], mesh);
      if (*dim.num_shards % blocks != 0) return false;
      missing.push_back(*dim.num_shards / blocks);
      dim = DimPin{{}, true, std::nullopt};
      continue;
    }
    dim.axes.clear();
    for (AxisIndex axis : pin.dims[d].axes) {
      if (is_in(known, axis)) dim.axes.push_back(axis);
    }
  }
  if (!allows(restricted, sharding, mesh)) return false;
  std::vector<std::int64_t> later;
  for (int axis = 0; axis < mesh.rank(); ++axis) {
    if (!is_in(known, axis)) later.push_back(mesh.axis_sizes[axis]);
  }
  return dealable(missing, later, 0);
}

/// The sharding that names the axes of `pin` in `known`, in the pin's order.
Sharding exactly(const Pin& pin, AxisMask known) {
  Sharding result{std::vector<AxisList>(pin.dims.size())};
  for (std::size_t d = 0; d < pin.dims.size(); ++d) {
    for (AxisIndex axis : pin.dims[d].axes) {
      if (is_in(known, axis)) result.dims[d].push_back(axis);
    }
  }
  return result;
}

bool contains(const std::vector<std::int32_t>& list, std::int32_t wanted) {
  return std::find(list.begin(), list.end(), wanted) != list.end();
}

}  // namespace

std::uint64_t hash_of(const LevelOptions& options, std::uint64_t seed) {
  std::uint64_t hash = seed;
  const auto add = [&hash](std::uint64_t number) {
    hash = (hash ^ number) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 32;
  };
  for (std::int32_t domain : options.domains) add(static_cast<std::uint64_t>(domain));
  for (std::int32_t op : options.ops) add(static_cast<std::uint64_t>(op));
  return hash;
}

std::vector<std::int32_t> choice_of(const InternedAssignment& assignment,
                                    const LevelOptions& options, const OptionStore& store) {
  std::vector<std::int32_t> choice;
  choice.reserve(options.num_nodes());
  const auto add = [&](const std::vector<std::int32_t>& list, std::int32_t wanted) {
    const auto found = std::find(list.begin(), list.end(), wanted);
    if (found == list.end()) return false;
    choice.push_back(static_cast<std::int32_t>(found - list.begin()));
    return true;
  };
  for (std::size_t c = 0; c < options.domains.size(); ++c) {
    if (!add(store.domain_at(options.domains[c]).shardings, assignment.values[c])) return {};
  }
  for (std::size_t o = 0; o < options.ops.size(); ++o) {
    if (!add(store.options_at(options.ops[o]).strategies, assignment.ops[o])) return {};
  }
  return choice;
}

InternedAssignment chosen(const std::vector<std::int32_t>& choice, const LevelOptions& options,
                          const OptionStore& store) {
  InternedAssignment result;
  result.values.reserve(options.domains.size());
  result.ops.reserve(options.ops.size());
  auto next = choice.begin();
  for (std::int32_t domain : options.domains) {
    result.values.push_back(store.domain_at(domain).shardings[*next++]);
  }
  for (std::int32_t op : options.ops) {
    result.ops.push_back(store.options_at(op).strategies[*next++]);
  }
  return result;
}

OptionFinder::OptionFinder(const Program& program, const Mesh& mesh, const Classes& classes,
                           OptionStore& store)
    : program_(program),
      mesh_(mesh),
      classes_(classes),
      store_(store),
      pins_of_(classes.values.size()),
      kept_operands_(classes.ops.size()),
      kept_results_(classes.ops.size()) {
  for (std::size_t p = 0; p < program.pins.size(); ++p) {
    const std::int32_t of = classes.class_of_value[program.pins[p].value];
    // Members of a class have equal pins; one of them speaks for all.
    if (of >= 0 && classes.values[of].value == program.pins[p].value) {
      pins_of_[of].push_back(static_cast<std::int32_t>(p));
    }
  }
  std::vector<bool> is_kept(classes.values.size(), false);
  for (const Use& use : classes.uses) {
    if (use.is_kept) is_kept[use.sharding_class] = true;
  }
  for (std::size_t u = 0; u < classes.uses.size(); ++u) {
    const Use& use = classes.uses[u];
    if (use.is_kept) kept_operands_[use.op].push_back(static_cast<std::int32_t>(u));
    if (use.is_result && is_kept[use.sharding_class]) {
      kept_results_[use.op].push_back(static_cast<std::int32_t>(u));
    }
  }
}

LevelOptions OptionFinder::find(const InternedAssignment& assignment, AxisMask decided,
                                AxisMask free) {
  LevelOptions found;
  found.domains.reserve(classes_.values.size());
  for (std::size_t c = 0; c < classes_.values.size(); ++c) {
    const std::int32_t domain =
        store_.domain(classes_.values[c].type, assignment.values[c], free);
    found.domains.push_back(pinned_domain(domain, pins_of_[c], decided | free));
  }
  found.ops.reserve(classes_.ops.size());
  for (std::size_t o = 0; o < classes_.ops.size(); ++o) {
    found.ops.push_back(
        store_.options_for(classes_.ops[o].signature, assignment.ops[o], free));
    keep_operands(static_cast<std::int32_t>(o), found);
  }
  return found;
}

/// What `pins` of one value leave of its domain. A user may want axes in an order that no
/// option has: then that order becomes an option.
std::int32_t OptionFinder::pinned_domain(std::int32_t domain,
                                         const std::vector<std::int32_t>& pins,
                                         AxisMask known) {
  bool is_first = true;
  for (std::int32_t p : pins) {
    const Pin& pin = program_.pins[p];
    const std::int32_t type = store_.domain_at(domain).type;
    std::vector<std::int32_t> candidates = store_.domain_at(domain).shardings;
    const std::int32_t wanted = store_.intern(type, exactly(pin, known));
    if (is_first && !contains(candidates, wanted)) candidates.push_back(wanted);
    is_first = false;
    std::erase_if(candidates, [&](std::int32_t s) {
      return !allowed(pin, store_.sharding(type, s), known, mesh_);
    });
    if (candidates.empty()) {
      throw Contradiction("the pins of one value allow no common sharding", -1, pin.value);
    }
    domain = store_.restricted_domain(type, std::move(candidates));
  }
  return domain;
}

/// An op must have options that take its kept operands as the pins have them, and a result
/// that is kept in turn can only be what these options make.
void OptionFinder::keep_operands(std::int32_t op_class, LevelOptions& options) {
  if (kept_operands_[op_class].empty()) return;
  const OptionStore::OpOptions& op = store_.options_at(options.ops[op_class]);
  std::vector<std::size_t> fitting;
  for (std::size_t o = 0; o < op.strategies.size(); ++o) {
    const bool fits = std::all_of(
        kept_operands_[op_class].begin(), kept_operands_[op_class].end(), [&](std::int32_t u) {
          const Use& use = classes_.uses[u];
          return contains(store_.domain_at(options.domains[use.sharding_class]).shardings,
                          op.operands[use.position][o]);
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
    for (std::size_t o : fitting) images.push_back(op.results[use.position][o]);
    std::sort(images.begin(), images.end());
    images.erase(std::unique(images.begin(), images.end()), images.end());
    options.domains[use.sharding_class] =
        store_.restricted_domain(classes_.values[use.sharding_class].type, std::move(images));
  }
}

}  // namespace autoshard::planning
