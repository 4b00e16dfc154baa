#include "planning/seconds.h"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "cost/compute.h"
#include "cost/reshard.h"
#include "planning/collective_matmul.h"
#include "planning/options.h"

namespace autoshard::planning {
namespace {

/// Too small to change a decision, enough to make one among equals.
constexpr double tie_per_byte = 1e-18;

/// Parts are reduced once if that takes less than this share of reducing them in trips, where
/// the compiler hides sums behind matmuls: adding to larger parts is hidden nowhere. Of 4 x 32
/// micro-batches of Llama-2-13B on four H100 of a node with a part of each gradient on each,
/// the step is 1.1 % shorter by the sum of seconds, and 1.1 % longer as compiled and
/// scheduled.
constexpr double share_of_hidden_sums = 0.5;

/// Longer than any step: a plan that needs it is one that cannot be.
constexpr double seconds_of_the_impossible = 1e6;

bool has_scalar_result(const Rule& rule) {
  return std::any_of(rule.results.begin(), rule.results.end(),
                     [](const RuleTensor& tensor) { return tensor.type == no_type; });
}

std::uint64_t id_of(const Prices& prices, std::uint64_t seed) {
  for (const auto& [point, price] : prices) {
    for (std::uint64_t part :
         {static_cast<std::uint64_t>(point), std::bit_cast<std::uint64_t>(price)}) {
      seed = (seed ^ part) * 0x9e3779b97f4a7c15ull;
      seed ^= seed >> 32;
    }
  }
  return seed;
}

double price_while(const LiveRange& live, const Prices& prices) {
  double sum = 0;
  for (const auto& [point, price] : prices) {
    if (live.first <= point && point < live.last) sum += price;
  }
  return sum;
}

/// The same of what lives besides buffers.
double price_besides(const ProgramMemory& memory, const LiveRange& live,
                     const Prices& prices) {
  const double price = price_while(live, prices);
  return price > 0 ? memory.share(live) * price : 0;
}

}  // namespace

SecondsCosts::SecondsCosts(const ProgramOnMesh& on)
    : on_(on),
      gathers_(on.program, on.memory, on.cluster.compiler),
      price_(on.classes.values.size(), 0),
      result_price_(on.classes.ops.size()),
      made_price_(on.classes.ops.size()) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> flows;
  for (std::size_t f = 0; f < on.classes.flows.size(); ++f) {
    const Flow& flow = on.classes.flows[f];
    flows[{flow.source, flow.target}] = static_cast<std::int32_t>(f);
  }
  for (const PassedOn& one : on.memory.passed_on) {
    const auto found = flows.find(
        {on.classes.class_of_value[one.source], on.classes.class_of_value[one.target]});
    flow_of_passed_on_.push_back(found == flows.end() ? -1 : found->second);
  }
  set_prices({});
}

void SecondsCosts::set_prices(const Prices& prices, const Prices& deciding) {
  prices_id_ = id_of(prices, prices.size());
  if (!on_.classes.sums.empty()) prices_id_ = id_of(deciding, prices_id_);
  sum_price_ = prices_of_sums(prices);
  deciding_price_ = prices_of_sums(deciding);
  for (std::size_t c = 0; c < price_.size(); ++c) {
    price_[c] =
        on_.classes.values[c].source < 0 ? tie_per_byte * on_.classes.values[c].count : 0;
  }
  const auto price_in = [&](const LiveRange& live) {
    return price_besides(on_.memory, live, prices);
  };
  for (const Buffer& stored : on_.memory.buffers) {
    const std::int32_t sharding_class = on_.classes.class_of_value[stored.value];
    if (sharding_class < 0) continue;
    const double whole = on_.program.types[on_.classes.values[sharding_class].type].bytes();
    if (whole > 0) {
      price_[sharding_class] += stored.bytes / whole * price_while(stored.live, prices);
    }
  }
  for (const Copy& copy : on_.classes.copies) {
    const LiveRange live = gathers_.live(copy);
    const double price = price_while(live, prices);
    if (price > 0) {
      price_[copy.sharding_class] += on_.memory.share(live, copy.value) * price;
    }
  }
  flow_price_.assign(on_.classes.flows.size(), 0);
  for (std::size_t f = 0; f < flow_price_.size(); ++f) {
    const std::int32_t target = on_.classes.flows[f].target;
    if (on_.classes.values[target].source >= 0) flow_price_[f] = price_[target];
  }
  for (std::size_t n = 0; n < flow_of_passed_on_.size(); ++n) {
    const std::int32_t flow = flow_of_passed_on_[n];
    if (flow >= 0) flow_price_[flow] += price_in(on_.memory.passed_on[n].loop);
  }
  set_prices_of_ops(prices);
  whole_price_ = 0;
  for (const auto& [point, price] : prices) whole_price_ += price;
}

void SecondsCosts::set_prices_of_ops(const Prices& prices) {
  operand_price_.assign(on_.classes.ops.size(), 0);
  for (std::size_t c = 0; c < made_price_.size(); ++c) {
    const OpSignature& signature = on_.signature_of_class(static_cast<std::int32_t>(c));
    made_price_[c].assign(on_.program.rules[signature.rule].results.size(), 0);
    result_price_[c] = made_price_[c];
  }
  if (prices.empty()) return;
  for (std::size_t i = 0; i < on_.classes.class_of_op.size(); ++i) {
    const Op& op = on_.program.ops[i];
    const std::int32_t op_class = on_.classes.class_of_op[i];
    const std::int32_t point = on_.memory.point[i];
    operand_price_[op_class] += price_besides(
        on_.memory, {gathers_.first(point), on_.memory.end_of_op(op, point)}, prices);
    const double while_it_runs = price_besides(on_.memory, {point, point + 1}, prices);
    for (std::size_t k = 0; k < op.results.size(); ++k) {
      if (on_.signature_of_class(op_class).part.writes[k]) {
        result_price_[op_class][k] += while_it_runs;
      }
      const std::int32_t v = op.results[k];
      if (v == no_value || on_.program.values[v].is_free) continue;
      made_price_[op_class][k] +=
          price_besides(on_.memory, on_.memory.live_if_stored[v], prices);
    }
  }
}

std::vector<double> SecondsCosts::prices_of_sums(const Prices& prices) const {
  std::vector<double> result;
  for (const ClassSum& sum : on_.classes.sums) {
    double price = 0;
    for (const SummedOp& one : sum.members) {
      price += one.bytes * price_besides(on_.memory, one.live, prices);
    }
    result.push_back(price);
  }
  return result;
}

double SecondsCosts::least_reduced(const OpSignature& signature,
                                   const FactorAxes& axes) const {
  const Rule& rule = on_.program.rules[signature.rule];
  const TensorType& type = on_.program.types[rule.results[0].type];
  const AxisMask partial = partial_axes(rule, axes);
  const Sharding made = project(rule.results[0], axes);
  double least = reshard(type, made, made, partial);
  for (std::size_t d = 0; d < made.dims.size(); ++d) {
    Sharding held = made;
    for (AxisIndex axis = 0; axis < on_.mesh.rank(); ++axis) {
      if ((partial >> axis) & 1u) held.dims[d].push_back(axis);
    }
    if (type.dims[d] % num_shards(held.dims[d], on_.mesh) != 0) continue;
    least = std::min(least, reshard(type, made, held, partial));
  }
  return least;
}

bool SecondsCosts::is_once(std::int32_t sum, double reduced, double bytes,
                           double held_bytes) const {
  const ClassSum& of = on_.classes.sums[sum];
  const double more = bytes - held_bytes;
  const double in_trips =
      of.runs * reduced *
      (on_.cluster.compiler.schedule.hides_sums ? share_of_hidden_sums : 1);
  return of.runs * of.share() * reduced + adding_seconds(of, more) +
             deciding_price_[sum] * more <
         in_trips;
}

double SecondsCosts::parts(std::int32_t sum, double more_bytes) const {
  return adding_seconds(on_.classes.sums[sum], more_bytes) + sum_price_[sum] * more_bytes;
}

/// What it takes in all trips that parts are larger: they are read and written, and so is what
/// is added to them.
double SecondsCosts::adding_seconds(const ClassSum& sum, double more_bytes) const {
  const Chip& chip = on_.cluster.chip;
  return sum.runs * more_bytes * (1 + 2 * sum.bits) /
         (chip.memory_bandwidth * chip.memory_efficiency);
}

std::vector<Transient> SecondsCosts::parts_of_sums(const Assignment& assignment) const {
  std::vector<Transient> parts;
  for (std::size_t n = 0; n < on_.classes.sums.size(); ++n) {
    const ClassSum& sum = on_.classes.sums[n];
    const OpSignature& signature = on_.signature_of_class(sum.op);
    const RuleTensor& result = on_.program.rules[signature.rule].results[0];
    const FactorAxes& axes = assignment.axes(sum.op);
    const AxisMask partial = partial_axes(on_.program.rules[signature.rule], axes);
    if (partial == 0) continue;
    const double whole = on_.program.types[result.type].bytes();
    const auto made = static_cast<double>(num_shards(project(result, axes), on_.mesh));
    const double least = whole / made / static_cast<double>(devices_along(partial, on_.mesh));
    if (!is_once(static_cast<std::int32_t>(n), least_reduced(signature, axes), whole / made,
                 least)) {
      continue;
    }
    const Sharding& held = assignment.sharding(sum.sharding_class);
    const double more =
        more_of_part(whole, made, static_cast<double>(num_shards(held, on_.mesh)));
    for (const SummedOp& one : sum.members) {
      parts.push_back({one.live, more * one.bytes});
      // Behind the loop, one after the other, what is reduced is written before it is cut.
      if (more > 0) {
        parts.push_back({{one.live.last - 1, one.live.last}, whole / made * one.bytes});
      }
      // While the op runs, what it makes counts as it makes it.
      const std::int32_t result_of_op = on_.program.ops[one.op].results[0];
      const LiveRange live = on_.memory.live[on_.memory.alias[result_of_op]];
      if (live.first + 1 < live.last) parts.push_back({{live.first + 1, live.last}, more});
    }
  }
  return parts;
}

double SecondsCosts::most_untimed_cost(double memory_limit) const {
  double most = whole_price_ > 0 ? whole_price_ * memory_limit : 0;
  for (const ShardingClass& sharding_class : on_.classes.values) {
    if (sharding_class.source < 0) {
      most +=
          tie_per_byte * sharding_class.count * on_.program.types[sharding_class.type].bytes();
    }
  }
  return most;
}

double SecondsCosts::reshard(const TensorType& type, const Sharding& from, const Sharding& to,
                             AxisMask partial) const {
  const std::vector<Step> steps = reshard_steps(type, from, to, partial, on_.mesh);
  if (type.is_on_host && !steps.empty()) return seconds_of_the_impossible;
  return slice_seconds(steps, from, to, partial, on_.cluster) +
         (1 - on_.cluster.overlap) * seconds_of(steps, on_.cluster, on_.mesh);
}

double SecondsCosts::shared(const TensorType& type, const Sharding& from, const Sharding& to,
                            AxisMask partial, std::int32_t together) const {
  double total = 0;
  for (const Step& step : reshard_steps(type, from, to, partial, on_.mesh)) {
    total += shared_latency(step, together, on_.cluster, on_.mesh);
  }
  return (1 - on_.cluster.overlap) * total;
}

double SecondsCosts::op(const OpSignature& signature, const FactorAxes&,
                        const FactorAxes& axes) const {
  const Rule& rule = on_.program.rules[signature.rule];
  double moved = 0;
  for (const Halo& halo : halos_of(rule, on_.program.types, axes, on_.mesh)) {
    moved += seconds(halo_step(halo, on_.mesh), on_.cluster, on_.mesh);
  }
  const AxisMask partial = partial_axes(rule, axes);
  if (partial != 0 && has_scalar_result(rule)) {
    for (const Step& step : scalar_steps(on_.mesh, partial)) {
      moved += seconds_of({step}, on_.cluster, on_.mesh) -
               shared_latency(step, signature.together, on_.cluster, on_.mesh);
    }
  }
  return (1 - on_.cluster.overlap) * moved +
         compute(rule, axes, signature.part, on_.program.types, on_.mesh, on_.cluster).seconds;
}

double SecondsCosts::scattering(const OpSignature& signature, const FactorAxes& axes,
                                const Sharding& made, const Sharding& held) const {
  const Rule& rule = on_.program.rules[signature.rule];
  const AxisMask partial = partial_axes(rule, axes);
  if (rule.work != Work::matmul || (partial & mask(held)) == 0) return 0;
  const Compute matmul =
      compute(rule, axes, signature.part, on_.program.types, on_.mesh, on_.cluster);
  double total = 0;
  for (const Step& step :
       reshard_steps(on_.program.types[rule.results[0].type], made, held, partial, on_.mesh)) {
    if (as_made(step, &matmul, on_.cluster, on_.mesh).second) {
      total +=
          ring_seconds(on_.program, signature, axes, made, held, step, on_.cluster, on_.mesh);
    }
  }
  return total;
}

double SecondsCosts::held(std::int32_t sharding_class, const Sharding& sharding) const {
  const ShardingClass& its = on_.classes.values[sharding_class];
  if (its.source >= 0) return 0;
  return (price_[sharding_class] + its.passes * pass_seconds(on_.cluster)) *
         on_.program.types[on_.classes.values[sharding_class].type].bytes() /
         static_cast<double>(num_shards(sharding, on_.mesh));
}

}  // namespace autoshard::planning
