#include "planning/gradient_sums.h"

#include <algorithm>
#include <set>
#include <utility>

#include "cost/collectives.h"
#include "cost/compute.h"
#include "cost/reshard.h"
#include "planning/dependences.h"
#include "planning/options.h"
#include "planning/steps.h"

namespace autoshard::planning {
namespace {

Compute compute_of_class(const ProgramOnMesh& on, const Assignment& assignment,
                         std::int32_t op_class) {
  const OpSignature& signature = on.signature_of_class(op_class);
  return compute(on.program.rules[signature.rule], assignment.axes(op_class), signature.part,
                 on.program.types, on.mesh, on.cluster);
}

/// Whether the compiler may run the sum of a class of matmuls late: all, or those in rings.
bool may_wait(const ProgramOnMesh& on, const Assignment& assignment, std::int32_t op_class,
              const Step& sum) {
  const Schedule& rules = on.cluster.compiler.schedule;
  if (rules.late_sums) return true;
  return rules.rings_in_order > 0 &&
         is_ring_of_matmuls(as_compiled(sum, on.cluster, on.mesh), on.cluster, on.mesh,
                            compute_of_class(on, assignment, op_class));
}

std::vector<Sent> sent_by_classes(const ProgramOnMesh& on, const Assignment& assignment) {
  std::vector<Sent> all(on.classes.ops.size());
  for (const Use& use : on.classes.uses) {
    if (use.is_kept) continue;
    Sent& sent = all[use.op];
    const Rule& rule = on.program.rules[on.signature_of_class(use.op).rule];
    const FactorAxes& axes = assignment.axes(use.op);
    const TensorType& type = on.program.types[on.classes.values[use.sharding_class].type];
    const Sharding& held = assignment.sharding(use.sharding_class);
    const Sharding used =
        project((use.is_result ? rule.results : rule.operands)[use.position], axes);
    if (!use.is_result) {
      const double seconds =
          seconds_of(reshard_steps(type, held, used, 0, on.mesh), on.cluster, on.mesh);
      sent.seconds += seconds;
      sent.is_gathered = sent.is_gathered || seconds > 0;
      continue;
    }
    const AxisMask partial = partial_axes(rule, axes);
    std::vector<Step> steps = reshard_steps(type, used, held, partial, on.mesh);
    sent.seconds += seconds_of(steps, on.cluster, on.mesh);
    if (rule.work != Work::matmul || partial == 0 || steps.empty() ||
        !may_wait(on, assignment, use.op, steps[0])) {
      continue;
    }
    sent.sums.resize(rule.results.size());
    sent.sums[use.position] = std::move(steps);
  }
  return all;
}

std::vector<double> seconds_of_copies(const ProgramOnMesh& on, const Assignment& assignment) {
  std::vector<double> seconds(on.program.ops.size(), 0);
  for (const Copy& copy : on.classes.copies) {
    const ShardingClass& sharding_class = on.classes.values[copy.sharding_class];
    seconds[copy.first_reader] +=
        seconds_of(reshard_steps(on.program.types[sharding_class.type],
                                 assignment.sharding(sharding_class.source),
                                 assignment.sharding(copy.sharding_class), 0, on.mesh),
                   on.cluster, on.mesh);
  }
  return seconds;
}

/// By value: something that is computed from it waits for a collective, or leaves the program
/// through one.
std::vector<bool> sent_on(const ProgramOnMesh& on, const Assignment& assignment,
                          const GradientSums& found) {
  std::vector<bool> is_sent_on(on.program.values.size(), false);
  for (const Join& join : on.program.joins) {
    const std::int32_t from = on.classes.class_of_value[join.source];
    const std::int32_t to = on.classes.class_of_value[join.target];
    if (from < 0 || to < 0) continue;
    if (!only_cuts(assignment.sharding(from), assignment.sharding(to))) {
      is_sent_on[join.source] = true;
    }
  }
  for (std::size_t i = on.program.ops.size(); i-- > 0;) {
    const Op& op = on.program.ops[i];
    bool is_sent = found.sent[on.classes.class_of_op[i]].seconds + found.copied[i] > 0;
    for (std::int32_t v : op.results) is_sent = is_sent || (v != no_value && is_sent_on[v]);
    for (std::int32_t v : op.operands) {
      if (v != no_value && is_sent) is_sent_on[v] = true;
    }
  }
  return is_sent_on;
}

DelayedSum delayed_sum(const ProgramOnMesh& on, const Assignment& assignment, std::size_t i,
                       const Step& sum) {
  const Op& op = on.program.ops[i];
  DelayedSum made{.op = static_cast<std::int32_t>(i), .point = on.memory.point[i]};
  for (std::int32_t v : op.operands) {
    if (v == no_value) continue;
    made.newest = std::max(made.newest, on.memory.live[on.memory.alias[v]].first);
  }
  const RuleTensor& result = on.program.rules[op.rule].results[0];
  made.kind = sum.kind;
  made.axes = sum.axes;
  made.seconds = seconds_of_op(on, assignment, i);
  made.sum_seconds = seconds_of({sum}, on.cluster, on.mesh);
  made.bytes =
      on.local_bytes(result.type, project(result, assignment.axes(on.classes.class_of_op[i])));
  made.summed_bytes = made.bytes;
  if (sum.kind == CollectiveKind::reduce_scatter) {
    made.summed_bytes /= static_cast<double>(sum.participants);
  }
  return made;
}

/// Loops, and `no_loop`, in which something is sent.
std::set<std::int32_t> loops_that_send(const ProgramOnMesh& on, const GradientSums& found) {
  std::set<std::int32_t> loops;
  for (std::size_t i = 0; i < on.program.ops.size(); ++i) {
    if (found.sent[on.classes.class_of_op[i]].seconds + found.copied[i] <= 0) continue;
    loops.insert(found.loops.of_op(static_cast<std::int32_t>(i)));
  }
  return loops;
}

void find_sums(const ProgramOnMesh& on, const Assignment& assignment, GradientSums& found) {
  const Schedule& rules = on.cluster.compiler.schedule;
  const std::vector<bool> is_sent_on = sent_on(on, assignment, found);
  for (std::size_t i = 0; i < on.program.ops.size(); ++i) {
    const Op& op = on.program.ops[i];
    const auto& sums = found.sent[on.classes.class_of_op[i]].sums;
    if (!is_matmul(on.program, i) || sums.empty() || sums[0].empty()) continue;
    if (op.results[0] == no_value || found.leads_on[op.results[0]]) continue;
    // What is gathered again hides the last transfer of its ring.
    const bool is_hidden = !rules.late_sums && !rules.hides_gathers;
    if (is_hidden && is_sent_on[op.results[0]]) continue;
    found.sums.push_back(delayed_sum(on, assignment, i, sums[0].front()));
    found.sums.back().is_sent_on = is_sent_on[op.results[0]];
    found.is_delayed[i] = true;
  }
  std::stable_sort(found.sums.begin(), found.sums.end(),
                   [](const DelayedSum& a, const DelayedSum& b) { return a.point < b.point; });
}

/// Matmuls for gradients that are not sent, where the compiler may run them late.
void find_unsent(const ProgramOnMesh& on, GradientSums& found) {
  const bool may_wait_anywhere = on.cluster.compiler.schedule.late_local_gradients;
  for (std::size_t i = 0; i < on.program.ops.size(); ++i) {
    if (!is_matmul(on.program, i) || found.is_delayed[i]) continue;
    const auto op = static_cast<std::int32_t>(i);
    const std::int32_t made = on.program.ops[i].results[0];
    if (made == no_value || found.leads_on[made]) continue;
    if (may_wait_anywhere && found.loops_that_send.count(found.loops.of_op(op)) == 0) continue;
    found.unsent.push_back({.op = op, .point = on.memory.point[i]});
    found.is_delayed[i] = may_wait_anywhere;
  }
}

/// A sum that a barrier waits for ends before the first op behind it that leads on.
void find_bounds(const ProgramOnMesh& on, GradientSums& found) {
  const Program& program = on.program;
  const std::vector<std::int32_t> until = waited_for(program);
  // By op: when the first one of it and those behind it runs that leads on.
  std::vector<std::int32_t> first(program.ops.size() + 1, never);
  for (std::size_t i = program.ops.size(); i-- > 0;) {
    const auto& results = program.ops[i].results;
    const bool leads = std::any_of(results.begin(), results.end(), [&](std::int32_t v) {
      return v != no_value && found.leads_on[v];
    });
    first[i] = leads ? std::min(first[i + 1], on.memory.point[i]) : first[i + 1];
  }
  for (std::vector<DelayedSum>* all : {&found.sums, &found.unsent}) {
    for (DelayedSum& sum : *all) {
      if (until[sum.op] >= 0) sum.bound = first[until[sum.op]];
    }
  }
}

}  // namespace

double seconds_of_op(const ProgramOnMesh& on, const Assignment& assignment, std::size_t op) {
  return compute_of_class(on, assignment, on.classes.class_of_op[op]).seconds;
}

bool is_matmul(const Program& program, std::size_t op) {
  return program.rules[program.ops[op].rule].work == Work::matmul;
}

GradientSums gradient_sums_of(const ProgramOnMesh& on, const Assignment& assignment) {
  GradientSums found{.sums = {},
                     .unsent = {},
                     .sent = sent_by_classes(on, assignment),
                     .copied = seconds_of_copies(on, assignment),
                     .leads_on = {},
                     .is_delayed = std::vector<bool>(on.program.ops.size(), false),
                     .loops = LoopNest(on.program),
                     .loops_that_send = {}};
  const Schedule& rules = on.cluster.compiler.schedule;
  if (rules.late_sums || rules.late_local_gradients) {
    found.loops_that_send = loops_that_send(on, found);
  }
  const bool has_sums = std::any_of(found.sent.begin(), found.sent.end(),
                                    [](const Sent& sent) { return !sent.sums.empty(); });
  const bool has_loops = rules.local_gradients_behind_loops && !on.program.loops.empty();
  if (!has_sums && !has_loops && found.loops_that_send.empty()) return found;
  found.leads_on = leading_to_matmuls(on.program, found.is_delayed);
  find_sums(on, assignment, found);
  if (has_loops || rules.late_local_gradients) find_unsent(on, found);
  find_bounds(on, found);
  return found;
}

}  // namespace autoshard::planning
