#include "planning/seconds.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>

#include "cost/redistribution.h"
#include "planning/late_sums.h"

namespace autoshard::planning {
namespace {

/// Too small to change a decision, enough to make one among equals.
constexpr double tie_per_byte = 1e-18;
/// Part of a kernel's launch that a slice costs: some slices end a fusion, most are read by a
/// kernel that runs anyway. Of a tensor that is read whole in this time none is taken.
constexpr double slice_share = 0.05;
/// A partial sum of rank 0, such as a loss.
const TensorType scalar_type{{}, 32};

double total_seconds(const std::vector<Step>& steps, const Cluster& cluster,
                     const Mesh& mesh) {
  double total = 0;
  for (const Step& step : steps) {
    total += compiled_seconds(step, cluster, mesh);
  }
  return total;
}

/// What is cut out of a tensor without a collective is in no fusion with what made it.
double slice_seconds(const std::vector<Step>& steps, const Sharding& from, const Sharding& to,
                     AxisMask partial, const Cluster& cluster) {
  const bool is_slice = steps.empty() && partial == 0 && from != to;
  return is_slice ? slice_share * cluster.chip.launch_seconds : 0;
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
void add_ring_operands(const Program& program, const Mesh& mesh, const ProgramMemory& memory,
                       const Classes& classes, const LevelSolver& levels, const Labels& labels,
                       const std::vector<bool>& in_rings, std::vector<Transient>& transients) {
  std::map<std::int32_t, Transient> stored;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    if (!in_rings[classes.class_of[i]]) continue;
    const Op& op = program.ops[i];
    const Rule& rule = program.rules[op.rule];
    const std::int32_t moment = memory.point[static_cast<std::int32_t>(i)];
    std::int32_t newest = -1;
    double copied = 0;
    for (std::size_t k = 0; k < op.operands.size(); ++k) {
      const std::int32_t value = op.operands[k];
      if (value == no_value) continue;
      const Sharding cut = project(rule.operands[k], levels.axes(labels, classes.class_of[i]));
      const double bytes = program.types[program.values[value].type].bytes() /
                           static_cast<double>(num_shards(cut, mesh));
      const LiveRange fused = memory.live_if_stored[value];
      const LiveRange live = fused.last > 0 ? fused : memory.live[memory.alias[value]];
      if (live.first > newest) {
        newest = live.first;
        copied = bytes;
      }
      if (fused.last == 0) continue;
      const auto [entry, is_new] =
          stored.try_emplace(memory.alias[value], Transient{{fused.first, moment + 1}, bytes});
      if (is_new) continue;
      Transient& known = entry->second;
      known.live.last = std::max(known.live.last, moment + 1);
      known.bytes = std::max(known.bytes, bytes);
    }
    transients.push_back({{moment, moment + 1}, copied});
  }
  for (const auto& [value, transient] : stored) transients.push_back(transient);
}

/// Kernels of convolutions pad both sides alike. Else a padded copy is made, which the
/// convolution for the gradient reads again.
void add_padded_operands(const Program& program, const Mesh& mesh, const ProgramMemory& memory,
                         const Classes& classes, const LevelSolver& levels,
                         const Labels& labels, std::vector<Transient>& transients) {
  std::map<std::pair<std::int32_t, double>, LiveRange> copies;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    const Rule& rule = program.rules[op.rule];
    if (rule.padded_bytes <= 0) continue;
    const Sharding cut = project(rule.operands[0], levels.axes(labels, classes.class_of[i]));
    const double bytes = rule.padded_bytes / static_cast<double>(num_shards(cut, mesh));
    const std::int32_t moment = memory.point[static_cast<std::int32_t>(i)];
    LiveRange& live =
        copies.try_emplace({memory.alias[op.operands[0]], bytes}, LiveRange{moment, moment})
            .first->second;
    live = {std::min(live.first, moment), std::max(live.last, moment + 1)};
  }
  for (const auto& [key, live] : copies) transients.push_back({live, key.second});
}

/// By moment: when the matmul before runs that is in the same loop; there is none: the moment
/// itself. What is gathered beside other ops is there from then on.
std::vector<std::int32_t> matmuls_before(const Program& program, const ProgramMemory& memory) {
  std::vector<std::int32_t> loop_of(program.ops.size(), -1);
  for (std::size_t l = program.loops.size(); l-- > 0;) {
    const Loop& loop = program.loops[l];
    std::fill(loop_of.begin() + loop.first_op, loop_of.begin() + loop.last_op,
              static_cast<std::int32_t>(l));
  }
  const auto moments = static_cast<std::size_t>(memory.num_points);
  std::vector<std::int32_t> loop_at(moments, -1), before(moments);
  std::vector<bool> is_matmul(moments, false);
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const std::int32_t moment = memory.point[static_cast<std::int32_t>(i)];
    loop_at[moment] = loop_of[i];
    if (program.rules[program.ops[i].rule].work == Work::matmul) is_matmul[moment] = true;
  }
  std::vector<std::int32_t> latest(program.loops.size() + 1, -1);
  for (std::size_t m = 0; m < moments; ++m) {
    std::int32_t& last = latest[loop_at[m] + 1];
    before[m] = last < 0 ? static_cast<std::int32_t>(m) : last;
    if (is_matmul[m]) last = static_cast<std::int32_t>(m);
  }
  return before;
}

/// What an op of a class stores besides its values.
struct Beside {
  /// Bytes that it writes otherwise than they are held, and that it reads so.
  double while_it_runs = 0, gathered = 0;
  /// By result: bytes, as they are held, that a collective makes of what it writes.
  std::vector<double> made;
  /// By result: its sum is reduced, not scattered.
  std::vector<bool> is_all_reduced;
};

/// A step of what is done to a result as the compiler makes it, and whether in a loop of the
/// matmul that takes `matmul_seconds`; negative: it is no matmul's.
std::pair<Step, bool> as_made(const Step& step, double matmul_seconds, const Cluster& cluster,
                              const Mesh& mesh) {
  const Step made = as_compiled(step, cluster, mesh);
  if (matmul_seconds >= 0 && is_ring_of_matmuls(made, cluster, mesh, matmul_seconds)) {
    return {as_ring_of_matmuls(made), true};
  }
  return {scattered_alone(made, cluster, mesh), false};
}

/// The factors of an op that makes one block of its result, as `held`, where it makes `made`.
FactorAxes block_of(const Rule& rule, const FactorAxes& axes, const Sharding& made,
                    const Sharding& held, const Mesh& mesh) {
  FactorAxes block = axes;
  for (std::size_t d = 0; d < held.dims.size(); ++d) {
    for (AxisIndex axis : held.dims[d]) {
      if ((mask(made) >> axis) & 1u) continue;
      for (std::int32_t f : rule.results[0].dims[d]) {
        const std::int64_t blocks = num_shards(block[f], mesh) * mesh.axis_sizes[axis];
        if (rule.factors[f].size % blocks != 0) continue;
        block[f].push_back(axis);
        break;
      }
    }
  }
  return block;
}

/// What a matmul takes more if a loop of it scatters its sums from `made` to `held`. Each turn
/// multiplies a block of its own, with the padding of that, and adds it to what came from the
/// neighbour. A loop cannot compute its operands: what was read from a fusion is stored, and
/// one operand, here the smaller, is transposed.
double ring_seconds(const Program& program, const OpKind& kind, const FactorAxes& axes,
                    const Sharding& made, const Sharding& held, const Step& scatter,
                    const Cluster& cluster, const Mesh& mesh) {
  const Rule& rule = program.rules[kind.rule];
  const auto bytes = [&](const RuleTensor& tensor) {
    return program.types[tensor.type].bytes() /
           static_cast<double>(num_shards(project(tensor, axes), mesh));
  };
  const Collectives& collectives = cluster.compiler.collectives;
  double moved = collectives.ring_result_passes * bytes(rule.results[0]);
  double smaller = std::numeric_limits<double>::infinity();
  for (std::size_t k = 0; k < rule.operands.size(); ++k) {
    if (!kind.reads[k]) moved += bytes(rule.operands[k]);
    smaller = std::min(smaller, bytes(rule.operands[k]));
  }
  moved += collectives.ring_operand_passes * smaller;
  const Compute turn =
      compute(rule, block_of(rule, axes, made, held, mesh),
              std::vector<bool>(rule.operands.size(), true),
              std::vector<bool>(rule.results.size(), true), program.types, mesh, cluster);
  const Compute whole =
      compute(rule, axes, kind.reads, kind.writes, program.types, mesh, cluster);
  const Chip& chip = cluster.chip;
  return static_cast<double>(scatter.participants) * turn.seconds - whole.seconds +
         moved / (chip.memory_bandwidth * chip.memory_efficiency);
}

bool has_scalar_result(const Rule& rule) {
  return std::any_of(rule.results.begin(), rule.results.end(),
                     [](const RuleTensor& tensor) { return tensor.type == no_type; });
}

}  // namespace

SecondsCosts::SecondsCosts(const Program& program, const Mesh& mesh, const Classes& classes,
                           const ProgramMemory& memory, const Cluster& cluster)
    : program_(program),
      mesh_(mesh),
      classes_(classes),
      memory_(memory),
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
  const auto add = [&](std::int32_t holder, const LiveRange& live, double share) {
    for (const auto& [moment, price] : prices) {
      if (live.first <= moment && moment < live.last) price_[holder] += share * price;
    }
  };
  for (const Buffer& stored : memory_.buffers) {
    const std::int32_t holder = classes_.holder_of[stored.value];
    if (holder < 0) continue;
    const double whole = program_.types[classes_.holders[holder].type].bytes();
    if (whole > 0) add(holder, stored.live, stored.bytes / whole);
  }
  for (const Copy& copy : classes_.copies) add(copy.holder, copy.live, 1);
  op_price_.assign(classes_.ops.size(), 0);
  for (std::size_t i = 0; i < classes_.class_of.size() && !prices.empty(); ++i) {
    const std::int32_t moment = memory_.point[static_cast<std::int32_t>(i)];
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
  const std::vector<Step> steps =
      redistribution_steps(type, from, to, partial, mesh_, may_scatter);
  return slice_seconds(steps, from, to, partial, cluster_) +
         (1 - cluster_.overlap) * total_seconds(steps, cluster_, mesh_);
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

double SecondsCosts::scattering(const OpKind& kind, const FactorAxes& axes,
                                const Sharding& made, const Sharding& held) const {
  const Rule& rule = program_.rules[kind.rule];
  const AxisMask partial = partial_axes(rule, axes);
  if (rule.work != Work::matmul || (partial & mask(held)) == 0) return 0;
  const double matmul_seconds =
      compute(rule, axes, kind.reads, kind.writes, program_.types, mesh_, cluster_).seconds;
  double total = 0;
  for (const Step& step :
       redistribution_steps(program_.types[rule.results[0].type], made, held, partial, mesh_,
                            may_scatter(rule, axes))) {
    if (as_made(step, matmul_seconds, cluster_, mesh_).second) {
      total += ring_seconds(program_, kind, axes, made, held, step, cluster_, mesh_);
    }
  }
  return total;
}

double SecondsCosts::holder(std::int32_t holder, const Sharding& sharding) const {
  if (classes_.holders[holder].source >= 0) return 0;
  return price_[holder] * program_.types[classes_.holders[holder].type].bytes() /
         static_cast<double>(num_shards(sharding, mesh_));
}

std::vector<Transient> transients_of(const Program& program, const Mesh& mesh,
                                     const Classes& classes, const ProgramMemory& memory,
                                     const Cluster& cluster, const LevelSolver& levels,
                                     const Labels& labels) {
  std::vector<Transient> result;
  const auto bytes = [&](std::int32_t type, const Sharding& s) {
    return program.types[type].bytes() / static_cast<double>(num_shards(s, mesh));
  };
  std::vector<std::int32_t> before;
  if (cluster.compiler.schedule.hides_gathers) before = matmuls_before(program, memory);
  const auto sent_from = [&](std::int32_t moment) {
    return before.empty() ? moment : before[moment];
  };
  for (const Copy& copy : classes.copies) {
    const Sharding& from = levels.sharding(labels, classes.holders[copy.holder].source);
    const Sharding& to = levels.sharding(labels, copy.holder);
    if (only_cuts(from, to)) continue;
    result.push_back({{sent_from(copy.live.first), copy.live.last},
                      bytes(classes.holders[copy.holder].type, to)});
  }
  std::vector<Beside> beside(classes.ops.size());
  std::vector<bool> in_rings(classes.ops.size(), false);
  for (const Use& use : classes.uses) {
    if (use.is_kept) continue;
    const OpKind& kind = classes.kinds[classes.ops[use.op].kind];
    const Rule& rule = program.rules[kind.rule];
    const FactorAxes axes = levels.axes(labels, use.op);
    const std::int32_t type = classes.holders[use.holder].type;
    const Sharding& held = levels.sharding(labels, use.holder);
    const Sharding used =
        project((use.is_result ? rule.results : rule.operands)[use.position], axes);
    Beside& of_op = beside[use.op];
    if (!use.is_result) {
      if (!only_cuts(held, used)) of_op.gathered += bytes(type, used);
      continue;
    }
    if (!only_cuts(held, used) && kind.writes[use.position]) {
      of_op.while_it_runs += bytes(type, used);
    }
    of_op.made.resize(rule.results.size(), 0.0);
    of_op.is_all_reduced.resize(rule.results.size(), false);
    if (!only_cuts(used, held)) of_op.made[use.position] = bytes(type, held);
    const AxisMask partial = partial_axes(rule, axes);
    if (partial == 0) continue;
    double matmul_seconds = -1;
    if (rule.work == Work::matmul) {
      matmul_seconds =
          compute(rule, axes, kind.reads, kind.writes, program.types, mesh, cluster).seconds;
    }
    for (const Step& step : redistribution_steps(program.types[type], used, held, partial,
                                                 mesh, may_scatter(rule, axes))) {
      const auto [made, is_ring] = as_made(step, matmul_seconds, cluster, mesh);
      if (is_ring) in_rings[use.op] = true;
      if (made.kind == CollectiveKind::all_reduce) of_op.is_all_reduced[use.position] = true;
    }
  }
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Beside& of_op = beside[classes.class_of[i]];
    for (std::size_t k = 0; k < of_op.made.size(); ++k) {
      const std::int32_t v = program.ops[i].results[k];
      if (v == no_value || program.values[v].is_free) continue;
      // What a collective makes is stored, whoever reads it.
      const LiveRange fused = memory.live_if_stored[v];
      if (of_op.made[k] > 0 && fused.last > 0) result.push_back({fused, of_op.made[k]});
      const auto* copies = of_op.is_all_reduced[k] ? memory.copies_if_reduced_of(v) : nullptr;
      if (!copies) continue;
      const Sharding& held = levels.sharding(labels, classes.holder_of[v]);
      for (const Buffer& copy : *copies) {
        result.push_back(
            {copy.live, copy.bytes / static_cast<double>(num_shards(held, mesh))});
      }
    }
    const std::int32_t moment = memory.point[static_cast<std::int32_t>(i)];
    if (of_op.while_it_runs > 0) {
      result.push_back({{moment, moment + 1}, of_op.while_it_runs});
    }
    if (of_op.gathered > 0) {
      result.push_back({{sent_from(moment), moment + 1}, of_op.gathered});
    }
  }
  add_ring_operands(program, mesh, memory, classes, levels, labels, in_rings, result);
  if (cluster.compiler.layout.symmetric_padding) {
    add_padded_operands(program, mesh, memory, classes, levels, labels, result);
  }
  return result;
}

Peak peak_of(const Program& program, const Mesh& mesh, const Classes& classes,
             const ProgramMemory& memory, const Cluster& cluster, const LevelSolver& levels,
             const Labels& labels, const std::vector<double>& num_shards) {
  std::vector<Transient> transients =
      transients_of(program, mesh, classes, memory, cluster, levels, labels);
  const Peak least = peak(memory.buffers, memory.num_points, num_shards, transients);
  const double limit = cluster.compiler.schedule.memory_share * cluster.chip.memory_bytes;
  if (least.bytes >= limit) return least;
  const std::vector<Transient> waiting =
      waiting_for_sums(program, mesh, classes, memory, cluster, levels, labels);
  if (waiting.empty()) return least;
  transients.insert(transients.end(), waiting.begin(), waiting.end());
  Peak most = peak(memory.buffers, memory.num_points, num_shards, transients);
  most.bytes = std::min(most.bytes, limit);
  return most;
}

PlanCosts costs_of(const Program& program, const Mesh& mesh, const Classes& classes,
                   const ProgramMemory& memory, const Cluster& cluster,
                   const LevelSolver& levels, const Labels& labels, const Plan& plan) {
  using Place = PlannedRedistribution::Place;
  PlanCosts costs;
  const auto add = [&](PlannedRedistribution move, std::vector<Step> steps) {
    if (steps.empty() && move.from == move.to) return;
    costs.compute_seconds +=
        move.trips * slice_seconds(steps, move.from, move.to, move.partial, cluster);
    CostedMove costed{std::move(move), std::move(steps), {}};
    const bool is_of_matmul =
        costed.move.place == Place::result &&
        program.rules[program.ops[costed.move.index].rule].work == Work::matmul;
    for (Step& step : costed.steps) {
      // The seconds are what the network charged: of a scatter in a ring those of one that
      // stands alone, and what the ring takes more as computing.
      costed.step_seconds.push_back(compiled_seconds(step, cluster, mesh));
      const double matmul_seconds = is_of_matmul ? costs.ops[costed.move.index].seconds : -1;
      const auto [made, is_ring] = as_made(step, matmul_seconds, cluster, mesh);
      if (is_ring) {
        const std::int32_t i = costed.move.index;
        const OpKind& kind = classes.kinds[classes.ops[classes.class_of[i]].kind];
        costs.compute_seconds +=
            costed.move.trips * ring_seconds(program, kind, plan.ops[i], costed.move.from,
                                             costed.move.to, step, cluster, mesh);
      }
      step = made;
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
  for (const Copy& copy : classes.copies) {
    const Sharding& to = levels.sharding(labels, copy.holder);
    const Sharding& from = plan.values[copy.value];
    if (from == to) continue;
    std::size_t position = 0;
    const Op& op = program.ops[copy.first_reader];
    while (op.operands[position] != copy.value) ++position;
    redistribute(Place::operand, copy.first_reader, position, copy.value, from, to, 0,
                 copy.trips, true);
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
      redistribute(Place::operand, i, k, op.operands[k], from, to, 0, op.trips, true);
    }
    const AxisMask partial = partial_axes(rule, plan.ops[i]);
    for (std::size_t k = 0; k < op.results.size(); ++k) {
      const std::int32_t v = op.results[k];
      if (v != no_value && program.values[v].is_free) continue;
      if (v != no_value) {
        const Sharding made = project(rule.results[k], plan.ops[i]);
        redistribute(Place::result, i, k, v, made, plan.values[v], partial, op.trips,
                     may_scatter(rule, plan.ops[i]));
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
  for (std::size_t j = 0; j < program.joins.size(); ++j) {
    const Join& join = program.joins[j];
    if (program.values[join.source].is_free || program.values[join.target].is_free) continue;
    redistribute(Place::join, j, 0, join.source, plan.values[join.source],
                 plan.values[join.target], 0, join.trips, true);
  }
  costs.step_seconds =
      costs.compute_seconds + costs.communication_seconds -
      std::min(cluster.overlap * costs.communication_seconds, costs.compute_seconds);
  costs.peak = peak_of(program, mesh, classes, memory, cluster, levels, labels,
                       shards_of(plan.values, mesh));
  return costs;
}

}  // namespace autoshard::planning
