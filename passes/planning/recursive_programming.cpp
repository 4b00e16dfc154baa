#include "planning/recursive_programming.h"

#include <algorithm>

#include "memory/stage_shares.h"
#include "planning/plan_search.h"
#include "planning/sent_together.h"

namespace autoshard::planning {
namespace {

/// Single axes, for a bound on a plan that is made again.
constexpr Rounds bound_rounds{10, 30, 150'000};
/// Folded programs of up to so many ops are looked at again without folding, if that halved
/// them.
constexpr std::size_t unfold_up_to_ops = 12'000;
/// A plan with other pins that costs no more than this above the one without them is not
/// searched for anew.
constexpr double worth_no_search = 1e-3;
/// Seconds; what is longer is no limit, and more than clocks can count.
constexpr double longest_time_limit = 1e9;

ClassOptions class_options(const Program& program, const Compiler& compiler, bool fold) {
  return {fold && program.ops.size() >= fold_from_ops ? fold_rounds : -1,
          search_copy_distance(program), sent_together(program, compiler)};
}

Clock::time_point deadline_of(const RecursiveOptions& options) {
  if (!(options.time_limit < longest_time_limit)) return Clock::time_point::max();
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(options.time_limit));
}

/// The memory that a search holds to its limit.
std::shared_ptr<const ProgramMemory> limited(
    const std::shared_ptr<const ProgramMemory>& memory, const Program& program, int stages) {
  if (stages == 1) return memory;
  return std::make_shared<const ProgramMemory>(of_a_stage(*memory, program, stages));
}

/// What a candidate means, with every term of its cost. `rounds` are for its bound where that
/// is by single axes.
RecursivePlan written_out(const Program& program, const Classes& classes,
                          const std::shared_ptr<const ProgramMemory>& memory,
                          const RecursiveOptions& options, const Candidate& best,
                          const Rounds& rounds, Phases& phases) {
  phases.start("bound");
  MeshSearch& search = best.stage->search;
  RecursivePlan result;
  if (best.is_joint) result.lower_bound_seconds = best.lower_bound;
  // One axis is all axes.
  if (!best.is_joint || best.stage->mesh.rank() == 1) {
    result.lower_bound_seconds =
        std::max(result.lower_bound_seconds, search.bound_of_axes(best.assignment, rounds));
  }
  phases.start("plan");
  result.mem_coeff = options.mem_coeff.value_or(best.coeff);
  result.op_classes = static_cast<std::int64_t>(classes.ops.size());
  result.mesh = best.stage->mesh;
  result.axis_groups = best.stage->groups;
  result.bound_is_joint = best.is_joint || result.mesh.rank() == 1;
  const Assignment assignment = search.levels().resolved(best.assignment);
  result.plan = plan_of(program, result.mesh, classes, assignment);
  verify(program, result.mesh, result.plan);
  result.costs = costs_of({program, result.mesh, classes, *memory, best.stage->cluster},
                          assignment, result.plan);
  result.limited_bytes = best.peak.bytes;
  result.known = std::make_shared<const KnownProgram>(
      KnownProgram{memory, classes, search.levels().messages_of_axes()});
  for (const CostedMove& move : result.costs.moves) {
    result.plan.reshards.push_back(move.move);
  }
  result.plan.resharded_bytes = result.costs.sent_bytes;
  result.plan.objective = best.seconds;
  result.plan.lower_bound = result.lower_bound_seconds;
  result.plan.levels = best.is_joint ? 1 : result.mesh.rank();
  return result;
}

}  // namespace

solver::Problem joint_network(const Program& program, const Cluster& cluster) {
  check(program);
  check(cluster, program.mesh);
  const ProgramMemory memory = memory_of(program, cluster.compiler);
  const Classes classes =
      classes_of(program, &memory, class_options(program, cluster.compiler, false));
  const SecondsCosts costs({program, program.mesh, classes, memory, cluster});
  const AxisOrders orders(program.mesh, program.pins);
  LevelSolver levels(program, program.mesh, classes, costs, orders);
  return levels.network(levels.unsplit(), 0, all_axes(program.mesh));
}

namespace {

/// Equal layers cut unlike, where that pays: every axis again, nothing folded, from `folded`.
/// Nothing if it does not.
std::optional<RecursivePlan> unfolded(const Program& program,
                                      const std::shared_ptr<const ProgramMemory>& memory,
                                      const RecursiveOptions& options, const Candidate& best,
                                      const RecursivePlan& folded, Phases& phases,
                                      Watch& watch) {
  phases.start("unfolding");
  Program on_mesh = program;
  on_mesh.mesh = folded.mesh;
  const Classes classes = classes_of(
      on_mesh, memory.get(), class_options(program, best.stage->cluster.compiler, false));
  const auto of_stage = limited(memory, program, options.stages);
  PlanSearch plans({on_mesh, classes, *of_stage, best.stage->cluster, options, phases, watch});
  std::optional<Candidate> found;
  try {
    found = plans.from(folded.plan, nullptr, best.coeff);
  } catch (const Contradiction&) {
    return std::nullopt;  // one axis at a time may not get where all together did
  }
  if (!found || !(found->seconds < best.seconds * (1 - least_gain))) return std::nullopt;
  RecursivePlan result =
      written_out(on_mesh, classes, memory, options, *found, mesh_sweep_rounds, phases);
  result.rounds = plans.rounds();
  result.axis_groups = folded.axis_groups;
  return result;
}

}  // namespace

RecursivePlan recursive_programming(const Program& program, const Cluster& cluster,
                                    const RecursiveOptions& options) {
  check(program);
  check(cluster, program.mesh);
  Phases phases;
  Watch watch(deadline_of(options), options.watcher, phases);
  phases.start("buffers");
  const auto memory =
      std::make_shared<const ProgramMemory>(memory_of(program, cluster.compiler));
  phases.start("folding");
  const Classes classes = classes_of(program, memory.get(),
                                     class_options(program, cluster.compiler, options.fold));
  const auto of_stage = limited(memory, program, options.stages);
  PlanSearch plans({program, classes, *of_stage, cluster, options, phases, watch});
  const Candidate best = plans.run();
  RecursivePlan result =
      written_out(program, classes, memory, options, best, mesh_sweep_rounds, phases);
  result.rounds = plans.rounds();
  const std::size_t num_ops = program.ops.size();
  if (options.fold && options.sweeps > 0 && num_ops >= fold_from_ops &&
      num_ops <= unfold_up_to_ops && 2 * classes.ops.size() < num_ops) {
    if (auto better = unfolded(program, memory, options, best, result, phases, watch)) {
      result = std::move(*better);
    }
  }
  phases.stop();
  result.phases = phases.list();
  return result;
}

namespace {

/// `plan` without cuts of factors that may not be cut: a sweep keeps what it cannot improve.
Plan without_forbidden_cuts(const Program& program, Plan plan) {
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const std::vector<Factor>& factors = program.rules[program.ops[i].rule].factors;
    for (std::size_t f = 0; f < factors.size(); ++f) {
      if (factors[f].kind == FactorKind::need_replication) plan.ops[i][f].clear();
    }
  }
  return plan;
}

/// A plan from `start`, or none where one axis at a time does not get as far as the whole
/// search might: nowhere, or, past an axis that contradicts pins, to much more than the
/// `seconds` there were before these.
std::optional<Candidate> from_previous(PlanSearch& plans, const Plan& start, double seconds,
                                       const KnownProgram& known, double mem_coeff) {
  try {
    return plans.from(start, &known, mem_coeff);
  } catch (const Contradiction&) {
  }
  try {
    std::optional<Candidate> found = plans.from(start, &known, mem_coeff, true);
    if (found && found->seconds <= seconds * (1 + worth_no_search)) return found;
  } catch (const Contradiction&) {
    // The whole search says what contradicts.
  }
  return std::nullopt;
}

}  // namespace

std::optional<RecursivePlan> replan_near(const Program& program, const Cluster& cluster,
                                         const Plan& previous, const KnownProgram& known,
                                         double mem_coeff, const RecursiveOptions& options) {
  check(program);
  check(cluster, program.mesh);
  Phases phases;
  phases.start("folding");
  const Classes classes = classes_of(program, known.memory.get(),
                                     class_options(program, cluster.compiler, options.fold));
  phases.start("sweeps");
  Watch watch(deadline_of(options), options.watcher, phases);
  const auto of_stage = limited(known.memory, program, options.stages);
  PlanSearch plans({program, classes, *of_stage, cluster, options, phases, watch});
  const std::optional<Candidate> best = from_previous(
      plans, without_forbidden_cuts(program, previous), previous.objective, known, mem_coeff);
  if (!best) return std::nullopt;
  RecursivePlan result =
      written_out(program, classes, known.memory, options, *best, bound_rounds, phases);
  result.rounds = plans.rounds();
  phases.stop();
  result.phases = phases.list();
  return result;
}

RecursivePlan replan(const Program& program, const Cluster& cluster, const Plan& previous,
                     const KnownProgram& known, double mem_coeff,
                     const RecursiveOptions& options) {
  std::optional<RecursivePlan> near =
      replan_near(program, cluster, previous, known, mem_coeff, options);
  if (near) return std::move(*near);
  RecursiveOptions again = options;
  again.merge_axes = false;
  return recursive_programming(program, cluster, again);
}

}  // namespace autoshard::planning
