#include "planning/transients.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "cost/compute.h"
#include "cost/reshard.h"
#include "memory/program_index.h"
#include "model/products.h"
#include "planning/collective_matmul.h"
#include "planning/delayed_reduction.h"
#include "planning/fills.h"
#include "planning/gather_points.h"
#include "planning/options.h"

namespace autoshard::planning {
namespace {

/// What an op of a class stores besides its values.
struct OpTransients {
  /// Bytes that it writes otherwise than they are held, and that it reads so.
  double while_it_runs = 0, gathered = 0;
  /// By result: bytes, as they are held, that a collective makes of what it writes.
  std::vector<double> made;
  /// A loop of the op scatters a sum of its results.
  bool is_in_ring = false;
};

/// Whether a result of an op with partial sums is reduced or scattered, and how.
void add_sums(const ProgramOnMesh& on, const Use& use, const FactorAxes& axes,
              const Sharding& used, const Sharding& held, AxisMask partial,
              OpTransients& of_op) {
  const OpSignature& signature = on.signature_of_class(use.op);
  const Rule& rule = on.program.rules[signature.rule];
  std::optional<Compute> matmul;
  if (rule.work == Work::matmul) {
    matmul = compute(rule, axes, signature.part, on.program.types, on.mesh, on.cluster);
  }
  const TensorType& type = on.program.types[on.classes.values[use.sharding_class].type];
  for (const Step& step : reshard_steps(type, used, held, partial, on.mesh)) {
    if (as_made(step, matmul ? &*matmul : nullptr, on.cluster, on.mesh).second)
      of_op.is_in_ring = true;
  }
}

/// Copies of the operands of a product that is added up in parts, where the rows of parts have
/// to be padded to begin at multiples of 16 bytes. The parts themselves, in float32, take 8
/// MiB at most, and are not counted.
///
/// Example: the gradient of 512 x 1,024 features over 50,265 columns of logits, 4 parts: both
/// operands are copied with 50,272 columns.
double padded_for_parts(const ProgramOnMesh& on, const Rule& rule, const FactorAxes& axes) {
  const Fusion& fusion = on.cluster.compiler.fusion;
  if (fusion.split_products == 0 || rule.work != Work::matmul || rule.has_workspace ||
      rule.operands.size() != 2 || is_summed(rule, fusion.summed_products)) {
    return 0;
  }
  double made = 1, contracted = 1;
  for (std::size_t f = 0; f < rule.factors.size(); ++f) {
    const bool is_made = has(rule.results[0], static_cast<std::int32_t>(f));
    (is_made ? made : contracted) *= static_cast<double>(rule.factors[f].size) /
                                     static_cast<double>(num_shards(axes[f], on.mesh));
  }
  const auto parts =
      static_cast<double>(parts_of_product(made, contracted, fusion.split_products));
  if (parts <= 1) return 0;
  constexpr double aligned_bits = 128;
  const auto bits = on.program.types[rule.operands[0].type].element_bits;
  if (std::fmod(contracted, parts * aligned_bits / static_cast<double>(bits)) == 0) return 0;
  double bytes = 0;
  for (const RuleTensor& operand : rule.operands) {
    bytes += on.local_bytes(operand.type, project(operand, axes));
  }
  return bytes;
}

/// By op class.
std::vector<OpTransients> transients_by_class(const ProgramOnMesh& on,
                                              const Assignment& assignment) {
  std::vector<OpTransients> by_class(on.classes.ops.size());
  for (std::size_t c = 0; c < by_class.size(); ++c) {
    const auto op_class = static_cast<std::int32_t>(c);
    by_class[c].while_it_runs = padded_for_parts(
        on, on.program.rules[on.signature_of_class(op_class).rule], assignment.axes(op_class));
  }
  for (const Use& use : on.classes.uses) {
    if (use.is_kept) continue;
    const OpSignature& signature = on.signature_of_class(use.op);
    const Rule& rule = on.program.rules[signature.rule];
    const FactorAxes& axes = assignment.axes(use.op);
    const std::int32_t type = on.classes.values[use.sharding_class].type;
    const Sharding& held = assignment.sharding(use.sharding_class);
    const Sharding used =
        project((use.is_result ? rule.results : rule.operands)[use.position], axes);
    OpTransients& of_op = by_class[use.op];
    if (!use.is_result) {
      if (!only_cuts(held, used)) of_op.gathered += on.local_bytes(type, used);
      continue;
    }
    if (!only_cuts(held, used) && signature.part.writes[use.position]) {
      of_op.while_it_runs += on.local_bytes(type, used);
    }
    of_op.made.resize(rule.results.size(), 0.0);
    if (!only_cuts(used, held)) of_op.made[use.position] = on.local_bytes(type, held);
    const AxisMask partial = partial_axes(rule, axes);
    if (partial != 0) add_sums(on, use, axes, used, held, partial, of_op);
  }
  return by_class;
}

/// Donated arguments of which a collective gathers the next value: they are copied one after
/// the other, each into the storage that the one before has left, and so are their next
/// values at the end. One storage is needed more, the largest.
class CopiedArguments {
 public:
  explicit CopiedArguments(const ProgramOnMesh& on) : on_(on) {}

  /// `value` is gathered; `bytes` are those of its next value on a device.
  void add(std::int32_t value, double bytes) {
    const GatheredResult* copies = on_.memory.copied_if_gathered_of(value);
    if (!copies) return;
    extend(arguments_, copies->argument, bytes);
    extend(results_, copies->result, bytes);
  }

  /// Adds results that are gathered as they leave the program.
  void add_joins(const Assignment& assignment) {
    std::vector<bool> leaves(on_.program.values.size(), false);
    for (std::int32_t result : on_.program.results) {
      if (result != no_value) leaves[result] = true;
    }
    for (const Join& join : on_.program.joins) {
      if (!leaves[join.target]) continue;
      const std::int32_t from = on_.classes.class_of_value[join.source];
      const std::int32_t to = on_.classes.class_of_value[join.target];
      if (from < 0 || to < 0) continue;
      const Sharding& held = assignment.sharding(to);
      if (only_cuts(assignment.sharding(from), held)) continue;
      add(join.source, on_.local_bytes(on_.program.values[join.target].type, held));
    }
  }

  void write(std::vector<Transient>& transients) const {
    for (const Transient& one : {arguments_, results_}) {
      if (!one.live.is_empty()) transients.push_back(one);
    }
  }

 private:
  static void extend(Transient& known, LiveRange live, double bytes) {
    if (live.is_empty()) return;
    if (!known.live.is_empty()) {
      live = {std::min(live.first, known.live.first), std::max(live.last, known.live.last)};
    }
    known = {live, std::max(known.bytes, bytes)};
  }

  const ProgramOnMesh& on_;
  Transient arguments_{{}, 0}, results_{{}, 0};
};

/// What collectives make of the results of op `i`: it is stored, whoever reads it.
void add_made(const ProgramOnMesh& on, std::size_t i, const OpTransients& of_op,
              CopiedArguments& copied, std::vector<Transient>& transients) {
  for (std::size_t k = 0; k < of_op.made.size(); ++k) {
    if (!(of_op.made[k] > 0)) continue;  // most classes make nothing: their ops are not read
    const std::int32_t v = on.program.ops[i].results[k];
    if (v == no_value || on.program.values[v].is_free) continue;
    const LiveRange fused = on.memory.live_if_stored[v];
    if (fused.last > 0) transients.push_back({fused, of_op.made[k]});
    copied.add(v, of_op.made[k]);
  }
}

/// A loop cannot compute its operands: what a matmul in a ring would read from a fusion is
/// stored, from where it is computed first. The operand that is made last, a gradient, is
/// copied into another layout for it.
void add_ring_operands(const ProgramOnMesh& on, const Assignment& assignment,
                       const std::vector<OpTransients>& by_class,
                       std::vector<Transient>& transients) {
  const ProgramMemory& memory = on.memory;
  std::map<std::int32_t, Transient> stored;
  for (std::size_t i = 0; i < on.program.ops.size(); ++i) {
    const std::int32_t op_class = on.classes.class_of_op[i];
    if (!by_class[op_class].is_in_ring) continue;
    const Op& op = on.program.ops[i];
    const Rule& rule = on.program.rules[op.rule];
    const std::int32_t point = memory.point[i];
    std::int32_t newest = -1;
    double copied = 0;
    for (std::size_t k = 0; k < op.operands.size(); ++k) {
      const std::int32_t value = op.operands[k];
      if (value == no_value) continue;
      const double bytes = on.local_bytes(
          on.program.values[value].type, project(rule.operands[k], assignment.axes(op_class)));
      const LiveRange fused = memory.live_if_stored[value];
      const LiveRange live = fused.last > 0 ? fused : memory.live[memory.alias[value]];
      if (live.first > newest) {
        newest = live.first;
        copied = bytes;
      }
      if (fused.last == 0) continue;
      const auto [entry, is_new] =
          stored.try_emplace(memory.alias[value], Transient{{fused.first, point + 1}, bytes});
      if (is_new) continue;
      Transient& known = entry->second;
      known.live.last = std::max(known.live.last, point + 1);
      known.bytes = std::max(known.bytes, bytes);
    }
    transients.push_back({{point, point + 1}, copied});
  }
  for (const auto& [value, transient] : stored) transients.push_back(transient);
}

/// What is gathered before a loop that reads it in every trip.
void add_passed_on(const ProgramOnMesh& on, const Assignment& assignment,
                   std::vector<Transient>& transients) {
  for (const PassedOn& one : on.memory.passed_on) {
    const std::int32_t from = on.classes.class_of_value[one.source];
    const std::int32_t to = on.classes.class_of_value[one.target];
    if (from < 0 || to < 0) continue;
    const Sharding& held = assignment.sharding(to);
    if (only_cuts(assignment.sharding(from), held)) continue;
    transients.push_back({one.loop, on.local_bytes(on.program.values[one.target].type, held)});
  }
}

/// Bytes that op `i` needs on a device while it runs.
double scratch_bytes(const ProgramOnMesh& on, const Assignment& assignment, std::size_t i) {
  const Rule& rule = on.program.rules[on.program.ops[i].rule];
  const Sharding cut = project(rule.operands[0], assignment.axes(on.classes.class_of_op[i]));
  return rule.scratch_bytes / static_cast<double>(num_shards(cut, on.mesh));
}

/// Kernels of convolutions pad both sides alike. Else a padded copy is made, which the
/// convolution for the gradient reads again.
void add_padded_operands(const ProgramOnMesh& on, const Assignment& assignment,
                         std::vector<Transient>& transients) {
  std::map<std::pair<std::int32_t, double>, LiveRange> copies;
  for (std::size_t i = 0; i < on.program.ops.size(); ++i) {
    const Op& op = on.program.ops[i];
    const Rule& rule = on.program.rules[op.rule];
    if (rule.padded_bytes <= 0 || op.is_unread) continue;
    const Sharding cut = project(rule.operands[0], assignment.axes(on.classes.class_of_op[i]));
    const double bytes = rule.padded_bytes / static_cast<double>(num_shards(cut, on.mesh));
    const std::int32_t point = on.memory.point[i];
    LiveRange& live =
        copies.try_emplace({on.memory.alias[op.operands[0]], bytes}, LiveRange{point, point})
            .first->second;
    live = {std::min(live.first, point), std::max(live.last, point + 1)};
  }
  for (const auto& [key, live] : copies) transients.push_back({live, key.second});
}

/// Whether a product reads parts of a slice that are gathered: `value` is the slice, or what
/// unary ops make of it.
bool is_gathered_slice(const ProgramOnMesh& on, const Assignment& assignment,
                       const ProgramIndex& index, std::int32_t value, std::int64_t shards) {
  for (std::int32_t i : index.readers_of(value)) {
    const Op& op = on.program.ops[i];
    const Rule& rule = on.program.rules[op.rule];
    const bool is_unary = op.operands.size() == 1 && op.results.size() == 1 &&
                          op.results[0] != no_value &&
                          (rule.work == Work::elementwise || rule.work == Work::view);
    if (is_unary && is_gathered_slice(on, assignment, index, op.results[0], shards)) {
      return true;
    }
    if (rule.work != Work::matmul) continue;
    for (std::size_t k = 0; k < op.operands.size(); ++k) {
      if (op.operands[k] != value) continue;
      const Sharding used =
          project(rule.operands[k], assignment.axes(on.classes.class_of_op[i]));
      if (num_shards(used, on.mesh) < shards) return true;
    }
  }
  return false;
}

/// Stacks among the arguments whose slices are gathered along another dim than their first:
/// what is gathered lies in pieces there, so that the stack is written once more, with that
/// dim in front.
void add_gathered_stacks(const ProgramOnMesh& on, const Assignment& assignment,
                         std::vector<Transient>& transients) {
  const ProgramIndex index(on.program);
  std::map<std::int32_t, LiveRange> stacks;
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    const Op& op = index.op(i);
    const bool is_slice = index.rule(i).work == Work::indexed && index.rule(i).is_cheap &&
                          op.operands[0] != no_value && op.results[0] != no_value;
    std::int32_t loop = index.loops.of_op(i);
    if (!is_slice || loop == no_loop) continue;
    const std::int32_t stack = on.memory.alias[op.operands[0]];
    const std::int32_t stack_class = on.classes.class_of_value[stack];
    if (!index.is_argument(stack) || stack_class < 0) continue;
    const Sharding& held = assignment.sharding(stack_class);
    const bool is_in_pieces =
        held.dims.size() > 2 && held.dims[0].empty() && held.dims[1].empty();
    const auto shards = num_shards(held, on.mesh);
    if (!is_in_pieces || shards == 1) continue;
    if (!is_gathered_slice(on, assignment, index, op.results[0], shards)) continue;
    while (index.loops.parent(loop) != no_loop) loop = index.loops.parent(loop);
    LiveRange& live = stacks[stack];
    live.last = std::max(live.last, on.memory.loops[loop].last);
  }
  for (const auto& [stack, live] : stacks) {
    const std::int32_t stack_class = on.classes.class_of_value[stack];
    transients.push_back({live, on.local_bytes(on.program.values[stack].type,
                                               assignment.sharding(stack_class))});
  }
}

/// Constants over which ops of one body scatter: one kernel writes equal ones, before the
/// first of these ops.
void add_filled(const ProgramOnMesh& on, const Assignment& assignment,
                std::vector<Transient>& transients) {
  for (const Fills& fills : scattered_over(on, assignment)) {
    const std::int32_t first = fills.points.front();
    for (const std::int32_t point : fills.points) {
      if (point > first) transients.push_back({{first, point}, fills.bytes});
    }
  }
}

}  // namespace

std::vector<Transient> transients_of(const ProgramOnMesh& on, const Assignment& assignment) {
  std::vector<Transient> result;
  const GatherPoints gathers(on.program, on.memory, on.cluster.compiler);
  for (const Copy& copy : on.classes.copies) {
    const ShardingClass& sharding_class = on.classes.values[copy.sharding_class];
    const Sharding& to = assignment.sharding(copy.sharding_class);
    if (only_cuts(assignment.sharding(sharding_class.source), to)) continue;
    const LiveRange live = gathers.live(copy);
    const double share = on.memory.share(live, copy.value) / on.memory.share(live);
    result.push_back({live, share * on.local_bytes(sharding_class.type, to)});
  }
  const std::vector<OpTransients> by_class = transients_by_class(on, assignment);
  CopiedArguments copied(on);
  copied.add_joins(assignment);
  for (std::size_t i = 0; i < on.program.ops.size(); ++i) {
    const OpTransients& of_op = by_class[on.classes.class_of_op[i]];
    add_made(on, i, of_op, copied, result);
    const std::int32_t point = on.memory.point[i];
    if (of_op.while_it_runs > 0) {
      result.push_back({{point, point + 1}, of_op.while_it_runs});
    }
    const Op& op = on.program.ops[i];
    const Rule& rule = on.program.rules[op.rule];
    if (rule.scratch_bytes > 0 && !op.is_unread) {
      result.push_back({{point, point + 1}, scratch_bytes(on, assignment, i)});
    }
    if (of_op.gathered > 0) {
      result.push_back(
          {{gathers.first(point), on.memory.end_of_op(op, point)}, of_op.gathered});
    }
  }
  for (const Body& body : on.program.bodies) {
    result.push_back({{body.after, body.after + 1}, body.bytes});
  }
  add_passed_on(on, assignment, result);
  add_ring_operands(on, assignment, by_class, result);
  copied.write(result);
  if (on.cluster.compiler.buffers.filled_stacks) add_filled(on, assignment, result);
  if (on.cluster.compiler.buffers.window_indices) {
    const std::vector<Transient> zeros = zeros_beside_windows(on, assignment);
    result.insert(result.end(), zeros.begin(), zeros.end());
  }
  if (on.cluster.compiler.layout.row_major_stacks) {
    add_gathered_stacks(on, assignment, result);
  }
  if (on.cluster.compiler.layout.symmetric_padding) {
    add_padded_operands(on, assignment, result);
  }
  return result;
}

std::vector<double> shards_by_value(const ProgramOnMesh& on, const Assignment& assignment) {
  std::vector<double> of_class;
  of_class.reserve(assignment.shardings.size());
  for (const Sharding& sharding : assignment.shardings) {
    of_class.push_back(static_cast<double>(num_shards(sharding, on.mesh)));
  }
  std::vector<double> shards(on.program.values.size(), 1);
  for (std::size_t v = 0; v < shards.size(); ++v) {
    const std::int32_t sharding_class = on.classes.class_of_value[v];
    if (sharding_class >= 0) shards[v] = of_class[sharding_class];
  }
  return shards;
}

Peak peak_of(const ProgramOnMesh& on, const Assignment& assignment,
             const std::vector<double>& num_shards, const std::vector<Transient>& besides) {
  const ProgramMemory& memory = on.memory;
  std::vector<Transient> transients;
  const auto add = [&](const std::vector<Transient>& more) {
    for (const Transient& one : more) {
      transients.push_back({one.live, memory.share(one.live) * one.bytes});
    }
  };
  add(transients_of(on, assignment));
  add(besides);
  const Peak least = peak(memory.buffers, memory.num_points, num_shards, transients);
  const double limit =
      on.cluster.compiler.schedule.memory_share * on.cluster.chip.memory_bytes;
  // What waits takes what stages have left.
  if (memory.stages > 1 || least.bytes >= limit) return least;
  const std::vector<Transient> waiting = waiting_for_reductions(on, assignment);
  if (waiting.empty()) return least;
  add(waiting);
  Peak most = peak(memory.buffers, memory.num_points, num_shards, transients);
  most.bytes = std::min(most.bytes, limit);
  return most;
}

}  // namespace autoshard::planning
