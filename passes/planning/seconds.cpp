#include "planning/seconds.h"

#include <algorithm>
#include <bit>
#include <map>

#include "cost/redistribution.h"

namespace autoshard::planning {
namespace {

/// Too small to change a decision, enough to make one among equals.
constexpr double tie_per_byte = 1e-18;
/// A partial sum of rank 0, such as a loss.
const TensorType scalar_type{{}, 32};

double total_seconds(const std::vector<Step>& steps, const Cluster& cluster,
                     const Mesh& mesh) {
  double total = 0;
  for (const Step& step : steps) {
    total += seconds(as_compiled(step, cluster, mesh), cluster, mesh);
  }
  return total;
}

Step halo_step(const Halo& halo, const Mesh& mesh) {
  AxisList axes;
  for (int axis = 0; axis < mesh.rank(); ++axis) {
    if ((halo.axes >> axis) & 1u) axes.push_back(static_cast<AxisIndex>(axis));
  }
  return {CollectiveKind::permute, halo.axes, num_shards(axes, mesh), halo.bytes};
}

std::vector<Step> scalar_steps(const Mesh& mesh, AxisMask partial) {
  return redistribution_steps(scalar_type, {}, {}, partial, mesh);
}

/// A loop cannot compute its operands: what a matmul in a ring would read from a fusion is
/// stored, from where it is computed first. The operand that is made last, a gradient, is
/// copied into another layout for it.
void add_ring_operands(const Program& program, const Mesh& mesh, const Storage& storage,
                       const Plan& plan, const std::vector<bool>& in_rings,
                       std::vector<Transient>& transients) {
  std::map<std::int32_t, Transient> stored;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    if (!in_rings[i]) continue;
    const Op& op = program.ops[i];
    const Rule& rule = program.rules[op.rule];
    const std::int32_t moment = storage.moment(static_cast<std::int32_t>(i));
    std::int32_t newest = -1;
    double copied = 0;
    for (std::size_t k = 0; k < op.operands.size(); ++k) {
      const std::int32_t value = op.operands[k];
      if (value == no_value) continue;
      const Sharding cut = project(rule.operands[k], plan.ops[i]);
      const double bytes = program.types[program.values[value].type].bytes() /
                           static_cast<double>(num_shards(cut, mesh));
      const Lifetime fused = storage.if_stored(value);
      const Lifetime live = fused.last > 0 ? fused : storage.lifetime(storage.same(value));
      if (live.first > newest) {
        newest = live.first;
        copied = bytes;
      }
      if (fused.last == 0) continue;
      const auto [entry, is_new] =
          stored.try_emplace(storage.same(value), Transient{{fused.first, moment + 1}, bytes});
      if (is_new) continue;
      Transient& known = entry->second;
      known.live.last = std::max(known.live.last, moment + 1);
      known.bytes = std::max(known.bytes, bytes);
    }
    transients.push_back({{moment, moment + 1}, copied});
  }
  for (const auto& [value, transient] : stored) transients.push_back(transient);
}

bool has_scalar_result(const Rule& rule) {
  return std::any_of(rule.results.begin(), rule.results.end(),
                     [](const RuleTensor& tensor) { return tensor.type == no_type; });
}

}  // namespace

SecondsCosts::SecondsCosts(const Program& program, const Mesh& mesh, const Classes& classes,
                           const Storage& storage, const Cluster& cluster)
    : program_(program),
      mesh_(mesh),
      classes_(classes),
      storage_(storage),
      cluster_(cluster),
      price_(classes.holders.size(), 0) {
  set_prices({});
}

void SecondsCosts::set_prices(const Prices& prices) {
  prices_id_ = prices.size();
  for (const auto& [moment, price] : prices) {
    for (std::uint64_t part :
         {static_cast<std::uint64_t>(moment), std::bit_cast<std::uint64_t>(price)}) {
      prices_id_ = (prices_id_ ^ part) * 0x9e3779b97f4a7c15ull;
      prices_id_ ^= prices_id_ >> 32;
    }
  }
  for (std::size_t h = 0; h < price_.size(); ++h) {
    price_[h] = classes_.holders[h].source < 0 ? tie_per_byte * classes_.holders[h].count : 0;
  }
  const auto add = [&](std::int32_t holder, const Lifetime& live, double share) {
    for (const auto& [moment, price] : prices) {
      if (live.first <= moment && moment < live.last) price_[holder] += share * price;
    }
  };
  for (const Storage::Stored& stored : storage_.stored()) {
    const std::int32_t holder = classes_.holder_of[stored.value];
    if (holder < 0) continue;
    const double whole = program_.types[classes_.holders[holder].type].bytes();
    if (whole > 0) add(holder, stored.lifetime, stored.bytes / whole);
  }
  for (const Copy& copy : classes_.copies) add(copy.holder, copy.live, 1);
  op_price_.assign(classes_.ops.size(), 0);
  for (std::size_t i = 0; i < classes_.class_of.size() && !prices.empty(); ++i) {
    const std::int32_t moment = storage_.moment(static_cast<std::int32_t>(i));
    for (const auto& [priced, price] : prices) {
      if (priced == moment) op_price_[classes_.class_of[i]] += price;
    }
  }
  whole_price_ = 0;
  for (const auto& [moment, price] : prices) whole_price_ += price;
}

double SecondsCosts::most_beside_seconds(double memory_limit) const {
  double most = whole_price_ > 0 ? whole_price_ * memory_limit : 0;
  for (const Holder& holder : classes_.holders) {
    if (holder.source < 0) {
      most += tie_per_byte * holder.count * program_.types[holder.type].bytes();
    }
  }
  return most;
}

double SecondsCosts::redistribution(const TensorType& type, const Sharding& from,
                                    const Sharding& to, AxisMask partial,
                                    bool may_scatter) const {
  return (1 - cluster_.overlap) *
         total_seconds(redistribution_steps(type, from, to, partial, mesh_, may_scatter),
                       cluster_, mesh_);
}

double SecondsCosts::op(const OpKind& kind, const FactorAxes&, const FactorAxes& axes) const {
  const Rule& rule = program_.rules[kind.rule];
  double moved = 0;
  for (const Halo& halo : halos_of(rule, program_.types, axes, mesh_)) {
    moved += seconds(halo_step(halo, mesh_), cluster_, mesh_);
  }
  const AxisMask partial = partial_axes(rule, axes);
  if (partial != 0 && has_scalar_result(rule)) {
    moved += total_seconds(scalar_steps(mesh_, partial), cluster_, mesh_);
  }
  return (1 - cluster_.overlap) * moved +
         compute(rule, axes, kind.reads, kind.writes, program_.types, mesh_, cluster_).seconds;
}

double SecondsCosts::holder(std::int32_t holder, const Sharding& sharding) const {
  if (classes_.holders[holder].source >= 0) return 0;
  return price_[holder] * program_.types[classes_.holders[holder].type].bytes() /
         static_cast<double>(num_shards(sharding, mesh_));
}

PlanCosts costs_of(const Program& program, const Mesh& mesh, const Classes& classes,
                   const Storage& storage, const Cluster& cluster, const LevelSolver& levels,
                   const Labels& labels, const Plan& plan) {
  using Place = PlannedRedistribution::Place;
  PlanCosts costs;
  std::vector<bool> in_rings(program.ops.size(), false);
  const auto add = [&](PlannedRedistribution move, std::vector<Step> steps) {
    if (steps.empty() && move.from == move.to) return;
    CostedMove costed{std::move(move), std::move(steps), {}};
    const bool is_of_matmul =
        costed.move.place == Place::result &&
        program.rules[program.ops[costed.move.index].rule].work == Work::matmul;
    for (Step& step : costed.steps) {
      step = as_compiled(step, cluster, mesh);
      costed.step_seconds.push_back(seconds(step, cluster, mesh));
      // The network does not know which op a sum comes from: the seconds stay what it charged.
      const bool is_ring =
          is_of_matmul &&
          is_ring_of_matmuls(step, cluster, mesh, costs.ops[costed.move.index].seconds);
      step = is_ring ? as_ring_of_matmuls(step) : scattered_alone(step, cluster, mesh);
      if (is_ring) in_rings[costed.move.index] = true;
      costed.move.volume.bytes += step.sent_bytes();
      costed.move.volume.collectives += 1;
      costs.communication_seconds += costed.move.trips * costed.step_seconds.back();
    }
    costs.sent_bytes += costed.move.trips * costed.move.volume.bytes;
    costs.moves.push_back(std::move(costed));
  };
  const auto redistribute = [&](Place place, std::size_t index, std::size_t position,
                                std::int32_t value, const Sharding& from, const Sharding& to,
                                AxisMask partial, double trips, bool scatters) {
    if (from == to && partial == 0) return;
    add({place,
         static_cast<std::int32_t>(index),
         static_cast<std::int32_t>(position),
         value,
         from,
         to,
         partial,
         {},
         trips},
        redistribution_steps(program.types[program.values[value].type], from, to, partial,
                             mesh, scatters));
  };
  std::vector<Transient> transients;
  for (const Copy& copy : classes.copies) {
    const Sharding& to = levels.sharding(labels, copy.holder);
    const Sharding& from = plan.values[copy.value];
    if (from == to) continue;
    std::size_t position = 0;
    const Op& op = program.ops[copy.first_reader];
    while (op.operands[position] != copy.value) ++position;
    redistribute(Place::operand, copy.first_reader, position, copy.value, from, to, 0,
                 copy.trips, true);
    if (!only_cuts(from, to)) {
      transients.push_back({copy.live, program.types[program.values[copy.value].type].bytes() /
                                           static_cast<double>(num_shards(to, mesh))});
    }
  }
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    const Rule& rule = program.rules[op.rule];
    const OpKind& kind = classes.kinds[classes.ops[classes.class_of[i]].kind];
    costs.ops.push_back(
        compute(rule, plan.ops[i], kind.reads, kind.writes, program.types, mesh, cluster));
    costs.compute_seconds += op.trips * costs.ops.back().seconds;
    for (std::size_t k = 0; k < op.operands.size(); ++k) {
      const std::int32_t holder = classes.operand_holder[classes.operand_offset[i] + k];
      if (holder < 0) continue;
      const Sharding& from = levels.sharding(labels, holder);
      const Sharding to = project(rule.operands[k], plan.ops[i]);
      if (from == to) continue;
      redistribute(Place::operand, i, k, op.operands[k], from, to, 0, op.trips, true);
      if (!only_cuts(from, to)) {
        const std::int32_t moment = storage.moment(static_cast<std::int32_t>(i));
        transients.push_back({{moment, moment + 1},
                              program.types[rule.operands[k].type].bytes() /
                                  static_cast<double>(num_shards(to, mesh))});
      }
    }
    const AxisMask partial = partial_axes(rule, plan.ops[i]);
    for (std::size_t k = 0; k < op.results.size(); ++k) {
      const std::int32_t v = op.results[k];
      if (v != no_value && program.values[v].is_free) continue;
      if (v != no_value) {
        const Sharding made = project(rule.results[k], plan.ops[i]);
        redistribute(Place::result, i, k, v, made, plan.values[v], partial, op.trips,
                     may_scatter(rule, plan.ops[i]));
        // What a collective makes is stored, whoever reads it.
        const Lifetime fused = storage.if_stored(v);
        if (fused.last > 0 && !only_cuts(made, plan.values[v])) {
          transients.push_back(
              {fused, program.types[rule.results[k].type].bytes() /
                          static_cast<double>(num_shards(plan.values[v], mesh))});
        }
        if (kind.writes[k] && !only_cuts(plan.values[v], made)) {
          const std::int32_t moment = storage.moment(static_cast<std::int32_t>(i));
          transients.push_back({{moment, moment + 1},
                                program.types[rule.results[k].type].bytes() /
                                    static_cast<double>(num_shards(made, mesh))});
        }
      } else if (partial != 0) {
        add({Place::result,
             static_cast<std::int32_t>(i),
             static_cast<std::int32_t>(k),
             no_value,
             {},
             {},
             partial,
             {},
             op.trips},
            scalar_steps(mesh, partial));
      }
    }
    for (const Halo& halo : halos_of(rule, program.types, plan.ops[i], mesh)) {
      add({Place::halo, static_cast<std::int32_t>(i), 0, no_value, {}, {}, 0, {}, op.trips},
          {halo_step(halo, mesh)});
    }
  }
  add_ring_operands(program, mesh, storage, plan, in_rings, transients);
  for (std::size_t j = 0; j < program.joins.size(); ++j) {
    const Join& join = program.joins[j];
    if (program.values[join.source].is_free || program.values[join.target].is_free) continue;
    redistribute(Place::join, j, 0, join.source, plan.values[join.source],
                 plan.values[join.target], 0, join.trips, true);
  }
  costs.step_seconds =
      costs.compute_seconds + costs.communication_seconds -
      std::min(cluster.overlap * costs.communication_seconds, costs.compute_seconds);
  costs.peak = peak(storage, shards_of(plan.values, mesh), transients);
  return costs;
}

}  // namespace autoshard::planning
