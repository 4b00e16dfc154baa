#include "planning/options.h"

#include <algorithm>
#include <functional>

#include "cost/compute.h"

namespace autoshard::planning {
namespace {

AxisList axes_of(AxisMask set) {
  AxisList axes;
  for (int axis = 0; axis < max_mesh_axes; ++axis) {
    if ((set >> axis) & 1u) axes.push_back(static_cast<AxisIndex>(axis));
  }
  return axes;
}

/// Calls `visit` with every choice that gives each free axis to one of `num_bins` bins or
/// none. `accepts(bin, set)` says whether a bin can hold a set of axes.
void distribute(const AxisList& free, std::vector<AxisMask>& bins, std::size_t next,
                const std::function<bool(std::size_t, AxisMask)>& accepts,
                const std::function<void()>& visit) {
  if (next == free.size()) {
    visit();
    return;
  }
  for (std::size_t bin = 0; bin < bins.size(); ++bin) {
    const AxisMask before = bins[bin];
    const AxisMask after = before | (1u << free[next]);
    if (!accepts(bin, after)) continue;
    bins[bin] = after;
    distribute(free, bins, next + 1, accepts, visit);
    bins[bin] = before;
  }
  distribute(free, bins, next + 1, accepts, visit);
}

/// Calls `visit` with every combination of orders of the sets in `bins`.
void order_all(const std::vector<AxisMask>& bins, const AxisOrders& orders,
               std::vector<AxisList>& lists, std::size_t next,
               const std::function<void()>& visit) {
  if (next == bins.size()) {
    visit();
    return;
  }
  for (const AxisList& order : orders.of(bins[next])) {
    lists[next] = order;
    order_all(bins, orders, lists, next + 1, visit);
  }
}

std::int64_t num_shards(AxisMask set, const Mesh& mesh) {
  return autoshard::num_shards(axes_of(set), mesh);
}

bool expressible(const RuleTensor& tensor, const Rule& rule,
                 const std::vector<TensorType>& types, const FactorAxes& axes,
                 const Mesh& mesh) {
  for (std::size_t d = 0; d < tensor.dims.size(); ++d) {
    bool complete = true;
    std::int64_t blocks = 1;
    for (std::int32_t f : tensor.dims[d]) {
      if (!axes[f].empty() && !complete) return false;
      const std::int64_t cuts = autoshard::num_shards(axes[f], mesh);
      blocks *= cuts;
      if (cuts != rule.factors[f].size) complete = false;
    }
    if (types[tensor.type].dims[d] % blocks != 0) return false;
  }
  return true;
}

}  // namespace

AxisOrders::AxisOrders(const Mesh& mesh, const std::vector<Pin>& pins) {
  const auto add = [this](const AxisList& axes) {
    if (std::is_sorted(axes.begin(), axes.end())) return;
    std::vector<AxisList>& known = user_orders_[mask(axes)];
    if (std::find(known.begin(), known.end(), axes) == known.end()) known.push_back(axes);
  };
  for (const Pin& pin : pins) {
    for (const DimPin& dim : pin.dims) add(dim.axes);
  }
  if (mesh.rank() == 2) add({1, 0});
}

const std::vector<AxisList>& AxisOrders::of(AxisMask set) const {
  auto [entry, is_new] = cache_.try_emplace(set);
  if (is_new) {
    entry->second.push_back(axes_of(set));
    if (auto user = user_orders_.find(set); user != user_orders_.end()) {
      entry->second.insert(entry->second.end(), user->second.begin(), user->second.end());
    }
  }
  return entry->second;
}

FactorAxes without(const FactorAxes& factors, AxisMask removed) {
  FactorAxes kept(factors.size());
  for (std::size_t f = 0; f < factors.size(); ++f) {
    for (AxisIndex axis : factors[f]) {
      if (!((removed >> axis) & 1u)) kept[f].push_back(axis);
    }
  }
  return kept;
}

Sharding without(const Sharding& sharding, AxisMask removed) {
  return {without(sharding.dims, removed)};
}

std::vector<Sharding> extensions(const std::vector<std::int64_t>& dims, const Sharding& base,
                                 AxisMask free, const Mesh& mesh, const AxisOrders& orders) {
  std::vector<Sharding> result;
  std::vector<AxisMask> bins(dims.size());
  for (std::size_t d = 0; d < dims.size(); ++d) bins[d] = mask(base.dims[d]);
  Sharding current{std::vector<AxisList>(dims.size())};
  distribute(
      axes_of(free), bins, 0,
      [&](std::size_t d, AxisMask set) {
        const std::int64_t blocks = num_shards(set, mesh);
        return dims[d] >= blocks && dims[d] % blocks == 0;
      },
      [&] { order_all(bins, orders, current.dims, 0, [&] { result.push_back(current); }); });
  // The base may hold an order that no rule above would make; it stays an option.
  if (std::find(result.begin(), result.end(), base) == result.end()) result.push_back(base);
  return result;
}

std::vector<FactorAxes> extensions(const Rule& rule, const std::vector<TensorType>& types,
                                   const FactorAxes& base, AxisMask free, const Mesh& mesh,
                                   const AxisOrders& orders) {
  std::vector<FactorAxes> result;
  const auto all_express = [&](const FactorAxes& axes) {
    for (const auto* tensors : {&rule.operands, &rule.results}) {
      for (const RuleTensor& tensor : *tensors) {
        if (!expressible(tensor, rule, types, axes, mesh)) return false;
      }
    }
    return true;
  };
  const std::size_t num_factors = rule.factors.size();
  std::vector<AxisMask> bins(num_factors);
  for (std::size_t f = 0; f < num_factors; ++f) bins[f] = mask(base[f]);
  FactorAxes current(num_factors);
  distribute(
      axes_of(free), bins, 0,
      [&](std::size_t f, AxisMask set) {
        const Factor& factor = rule.factors[f];
        const std::int64_t blocks = num_shards(set, mesh);
        return factor.kind != FactorKind::need_replication && factor.size >= blocks &&
               factor.size % blocks == 0;
      },
      [&] {
        order_all(bins, orders, current, 0, [&] {
          if (all_express(current)) result.push_back(current);
        });
      });
  // The base may cut a minor factor of which a free axis cut the major one.
  const bool is_option = result.empty() || all_express(base);
  if (is_option && std::find(result.begin(), result.end(), base) == result.end()) {
    result.push_back(base);
  }
  return result;
}

Sharding project(const RuleTensor& tensor, const FactorAxes& axes) {
  Sharding sharding{std::vector<AxisList>(tensor.dims.size())};
  for (std::size_t d = 0; d < tensor.dims.size(); ++d) {
    for (std::int32_t f : tensor.dims[d]) {
      sharding.dims[d].append(axes[f].begin(), axes[f].end());
    }
  }
  return sharding;
}

bool is_made_scattered(const Rule& rule, const FactorAxes& axes, const Mesh& mesh) {
  if (adds_one_of_each_device(rule, axes, mesh)) return true;
  for (std::size_t f = 0; f < axes.size(); ++f) {
    if (rule.factors[f].kind != FactorKind::reduction || axes[f].empty()) continue;
    int operands = 0;
    for (const RuleTensor& tensor : rule.operands) {
      for (const auto& factors : tensor.dims) {
        operands += static_cast<int>(
            std::count(factors.begin(), factors.end(), static_cast<std::int32_t>(f)));
      }
    }
    if (operands < 2) return false;
  }
  return true;
}

std::vector<Halo> halos_of(const Rule& rule, const std::vector<TensorType>& types,
                           const FactorAxes& axes, const Mesh& mesh) {
  std::vector<Halo> halos;
  for (std::size_t f = 0; f < rule.factors.size(); ++f) {
    const Factor& factor = rule.factors[f];
    if (axes[f].empty() || factor.halo == 0) continue;
    const double block = static_cast<double>(factor.size) /
                         static_cast<double>(autoshard::num_shards(axes[f], mesh));
    if (block == 0) continue;  // tensors without elements have no halo
    const double share = factor.halo < 0 ? 1.0 : static_cast<double>(factor.halo) / block;
    // A sum over a cut image (the gradient of a kernel) reads windows of the image alone.
    const std::size_t num_read =
        factor.kind == FactorKind::reduction ? 1 : rule.operands.size();
    for (std::size_t k = 0; k < num_read; ++k) {
      const RuleTensor& tensor = rule.operands[k];
      for (const auto& factors : tensor.dims) {
        if (std::find(factors.begin(), factors.end(), static_cast<std::int32_t>(f)) ==
            factors.end()) {
          continue;
        }
        const double local =
            types[tensor.type].bytes() /
            static_cast<double>(autoshard::num_shards(project(tensor, axes), mesh));
        halos.push_back({share * local, mask(axes[f])});
      }
    }
  }
  return halos;
}

}  // namespace autoshard::planning
