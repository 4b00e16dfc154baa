#include "planning/plan_costs.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "cost/compute.h"
#include "cost/reshard.h"
#include "planning/collective_matmul.h"
#include "planning/options.h"
#include "planning/steps.h"
#include "planning/transients.h"

namespace autoshard::planning {
namespace {

using Place = PlannedReshard::Place;

/// Where a reshard stands in the program; see `PlannedReshard`.
struct Spot {
  Place place;
  std::size_t index, position;
  std::int32_t value;
  double trips;
};

/// Adds up the terms, in the order in which they are asked for.
class CostSum {
 public:
  CostSum(const ProgramOnMesh& on, const Assignment& assignment, const Plan& plan)
      : on_(on), assignment_(assignment), plan_(plan) {}

  PlanCosts run() {
    add_copies();
    for (std::size_t i = 0; i < on_.program.ops.size(); ++i) {
      if (on_.program.ops[i].is_unread) {
        costs_.ops.emplace_back();
        continue;
      }
      add_compute(i);
      add_operands(i);
      add_results(i);
      add_halos(i);
    }
    add_joins();
    costs_.step_seconds =
        costs_.compute_seconds + costs_.communication_seconds -
        std::min(on_.cluster.overlap * costs_.communication_seconds, costs_.compute_seconds);
    costs_.peak = peak_of(on_, assignment_, shards_of(plan_.values, on_.mesh));
    return std::move(costs_);
  }

 private:
  const Rule& rule(std::size_t op) const {
    return on_.program.rules[on_.program.ops[op].rule];
  }
  static PlannedReshard move_at(const Spot& spot, const Sharding& from, const Sharding& to,
                                AxisMask partial) {
    return {spot.place,
            static_cast<std::int32_t>(spot.index),
            static_cast<std::int32_t>(spot.position),
            spot.value,
            from,
            to,
            partial,
            {},
            spot.trips};
  }

  void add(PlannedReshard move, std::vector<Step> steps, std::int32_t together = 1);
  void reshard(const Spot& spot, const Sharding& from, const Sharding& to, AxisMask partial);
  void add_copies();
  void add_compute(std::size_t i);
  void add_operands(std::size_t i);
  void add_results(std::size_t i);
  void add_halos(std::size_t i);
  void add_joins();

  const ProgramOnMesh& on_;
  const Assignment& assignment_;
  const Plan& plan_;
  PlanCosts costs_;
};

void CostSum::add(PlannedReshard move, std::vector<Step> steps, std::int32_t together) {
  if (steps.empty() && move.from == move.to) return;
  const double slices = slice_seconds(steps, move.from, move.to, move.partial, on_.cluster);
  CostedMove costed{std::move(move), std::move(steps), {}, {}, slices};
  const std::int32_t i = costed.move.index;
  const bool is_of_matmul = costed.move.place == Place::result && rule(i).work == Work::matmul;
  for (Step& step : costed.steps) {
    // The seconds are what the network charged: of a scatter in a ring those of one that
    // stands alone, and what the ring takes more as computing.
    costed.step_seconds.push_back(compiled_seconds(step, on_.cluster, on_.mesh) -
                                  shared_latency(step, together, on_.cluster, on_.mesh));
    const Compute* matmul = is_of_matmul ? &costs_.ops[i] : nullptr;
    const auto [made, is_ring] = as_made(step, matmul, on_.cluster, on_.mesh);
    costed.is_ring.push_back(is_ring);
    if (is_ring) {
      costed.compute_seconds +=
          ring_seconds(on_.program, on_.signature_of_op(i), plan_.ops[i], costed.move.from,
                       costed.move.to, step, on_.cluster, on_.mesh);
    }
    step = made;
    costed.move.volume.bytes += step.sent_bytes();
    costed.move.volume.collectives += 1;
    costs_.communication_seconds += costed.move.trips * costed.step_seconds.back();
  }
  costs_.compute_seconds += costed.move.trips * costed.compute_seconds;
  costs_.sent_bytes += costed.move.trips * costed.move.volume.bytes;
  costs_.moves.push_back(std::move(costed));
}

void CostSum::reshard(const Spot& spot, const Sharding& from, const Sharding& to,
                      AxisMask partial) {
  if (from == to && partial == 0) return;
  const TensorType& type = on_.program.types[on_.program.values[spot.value].type];
  const std::int32_t sharding_class = on_.classes.class_of_value[spot.value];
  const std::int32_t together =
      sharding_class < 0 ? 1 : on_.classes.values[sharding_class].together;
  add(move_at(spot, from, to, partial), reshard_steps(type, from, to, partial, on_.mesh),
      together);
}

void CostSum::add_copies() {
  for (std::size_t c = 0; c < on_.classes.copies.size(); ++c) {
    const Copy& copy = on_.classes.copies[c];
    const Sharding& to = assignment_.sharding(copy.sharding_class);
    const Sharding& from = plan_.values[copy.value];
    if (from == to) continue;
    std::size_t position = 0;
    const Op& op = on_.program.ops[copy.first_reader];
    while (op.operands[position] != copy.value) ++position;
    const auto reader = static_cast<std::size_t>(copy.first_reader);
    reshard({Place::operand, reader, position, copy.value, copy.trips}, from, to, 0);
    costs_.moves.back().copy = static_cast<std::int32_t>(c);
  }
}

void CostSum::add_compute(std::size_t i) {
  const OpSignature& signature = on_.signature_of_op(i);
  costs_.ops.push_back(compute(rule(i), plan_.ops[i], signature.part, on_.program.types,
                               on_.mesh, on_.cluster));
  costs_.compute_seconds += on_.program.ops[i].trips * costs_.ops.back().seconds;
}

void CostSum::add_operands(std::size_t i) {
  const Op& op = on_.program.ops[i];
  for (std::size_t k = 0; k < op.operands.size(); ++k) {
    const std::int32_t sharding_class =
        on_.classes.operand_class[on_.classes.operand_offset[i] + k];
    if (sharding_class < 0) continue;
    reshard({Place::operand, i, k, op.operands[k], op.trips},
            assignment_.sharding(sharding_class), project(rule(i).operands[k], plan_.ops[i]),
            0);
  }
}

void CostSum::add_results(std::size_t i) {
  const Op& op = on_.program.ops[i];
  const AxisMask partial = partial_axes(rule(i), plan_.ops[i]);
  for (std::size_t k = 0; k < op.results.size(); ++k) {
    const std::int32_t v = op.results[k];
    const Spot spot{Place::result, i, k, v, op.trips};
    if (v == no_value) {
      if (partial == 0) continue;
      add(move_at(spot, {}, {}, partial), scalar_steps(on_.mesh, partial),
          on_.signature_of_op(i).together);
      continue;
    }
    if (on_.program.values[v].is_free) continue;
    reshard(spot, project(rule(i).results[k], plan_.ops[i]), plan_.values[v], partial);
  }
}

void CostSum::add_halos(std::size_t i) {
  const Spot spot{Place::halo, i, 0, no_value, on_.program.ops[i].trips};
  for (const Halo& halo : halos_of(rule(i), on_.program.types, plan_.ops[i], on_.mesh)) {
    add(move_at(spot, {}, {}, 0), {halo_step(halo, on_.mesh)});
  }
}

void CostSum::add_joins() {
  const Program& program = on_.program;
  const std::vector<bool> begins = begin_loops(program);
  for (std::size_t j = 0; j < program.joins.size(); ++j) {
    const Join& join = program.joins[j];
    const Sharding &from = plan_.values[join.source], &to = plan_.values[join.target];
    const Spot spot{Place::join, j, 0, join.source, join.trips};
    const double passes = begins[j] ? on_.memory.passes[join.target] : 0;
    if (passes > 0 && !program.values[join.target].is_free) {
      const double seconds = passes * pass_seconds(on_.cluster) *
                             on_.local_bytes(program.values[join.target].type, to);
      costs_.moves.push_back({move_at(spot, to, to, 0), {}, {}, {}, seconds, -1});
      costs_.compute_seconds += join.trips * seconds;
    }
    if (program.values[join.source].is_free || program.values[join.target].is_free) continue;
    reshard(spot, from, to, 0);
    if (!begins[j] || from == to || !only_cuts(from, to)) continue;
    const double seconds = stored_slice_seconds(on_.cluster) *
                           on_.local_bytes(program.values[join.source].type, to);
    costs_.moves.back().compute_seconds += seconds;
    costs_.compute_seconds += join.trips * seconds;
  }
}

}  // namespace

namespace {

/// Bytes at each point, of ranges of points with their bytes.
std::vector<double> at_points(std::int32_t num_points, const std::vector<Transient>& living) {
  std::vector<double> live(num_points + 1, 0.0);
  for (const Transient& one : living) {
    live[one.live.first] += one.bytes;
    live[one.live.last] -= one.bytes;
  }
  for (std::size_t m = 1; m < live.size(); ++m) live[m] += live[m - 1];
  live.pop_back();
  return live;
}

std::vector<Transient> values_of(const ProgramOnMesh& on, const Plan& plan) {
  const std::vector<Buffer>& buffers = on.memory.buffers;
  const std::vector<double> taken = taken_bytes(buffers, shards_of(plan.values, on.mesh));
  std::vector<Transient> found;
  for (std::size_t i = 0; i < taken.size(); ++i) found.push_back({buffers[i].live, taken[i]});
  return found;
}

}  // namespace

PlanCosts costs_of(const ProgramOnMesh& on, const Assignment& assignment, const Plan& plan) {
  PlanCosts costs = CostSum(on, assignment, plan).run();
  const std::int32_t points = on.memory.num_points;
  costs.live_bytes = at_points(points, values_of(on, plan));
  costs.transient_bytes = at_points(points, transients_of(on, assignment));
  costs.schedule = schedule_of(on, costs);
  return costs;
}

}  // namespace autoshard::planning
