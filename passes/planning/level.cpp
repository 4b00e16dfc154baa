#include "planning/level.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace autoshard::planning {
namespace {

/// The solver stops when it has proved to be this close to the least cost.
constexpr double relative_gap = 1e-4;

std::int64_t rounds_for(const Rounds& rounds, std::size_t nodes) {
  return std::clamp(
      rounds.node_rounds / std::max<std::int64_t>(static_cast<std::int64_t>(nodes), 1),
      rounds.fewest, rounds.most);
}

}  // namespace

LevelSolver::LevelSolver(const Program& program, const Mesh& mesh, const Classes& classes,
                         const Costs& costs, const AxisOrders& orders)
    : program_(program),
      mesh_(mesh),
      classes_(classes),
      costs_(costs),
      store_(program, mesh, classes, costs, orders),
      options_(program, mesh, classes, store_),
      networks_(classes, costs, store_) {}

solver::Problem LevelSolver::network(const InternedAssignment& assignment, AxisMask decided,
                                     AxisMask free) {
  solver::Problem copy = networks_.build(options_.find(assignment, decided, free));
  networks_.take_back();
  return copy;
}

double LevelSolver::objective(const InternedAssignment& assignment) {
  // Without free axes every node has one option, or pins leave none.
  const LevelOptions level = options_.find(assignment, all_axes(mesh_), 0);
  const std::vector<std::int32_t> choice = choice_of(assignment, level, store_);
  return choice.empty() ? solver::kNotAllowed : networks_.cost_of(level, choice);
}

LevelResult LevelSolver::solve(InternedAssignment& assignment, AxisMask decided, AxisMask free,
                               const Rounds& rounds, std::uint64_t seed, bool improve) {
  const LevelOptions level = options_.find(assignment, decided, free);
  // A program of scalars alone leaves nothing to decide.
  if (level.num_nodes() == 0) return {0, 0};
  const std::vector<std::int32_t> start =
      improve ? choice_of(assignment, level, store_) : std::vector<std::int32_t>();
  const std::int64_t most_rounds = rounds_for(rounds, level.num_nodes());
  Solved& known = solved_[hash_of(level, costs_.prices_id())];
  // A network comes back where a sweep changed nothing else, or on a mesh of one axis.
  const bool is_known = !known.choice.empty() &&
                        (known.rounds == 0 || 2 * known.rounds >= most_rounds) &&
                        (start.empty() || start == known.choice ||
                         known.result.objective <= networks_.cost_of(level, start));
  if (!is_known) {
    known = solved(level, start, most_rounds, rounds.exact_operations, seed,
                   messages_[static_cast<std::uint64_t>(decided) << 32 | free]);
  }
  assignment = chosen(known.choice, level, store_);
  return known.result;
}

/// Solves a network, starting from `start` unless it is empty.
LevelSolver::Solved LevelSolver::solved(const LevelOptions& level,
                                        const std::vector<std::int32_t>& start,
                                        std::int64_t most_rounds, double exact_operations,
                                        std::uint64_t seed, solver::KnownMessages& messages) {
  solver::Options options;
  options.seed = seed;
  options.gap = relative_gap;
  // By iterations alone, so that a program has one plan on every machine.
  options.seconds = std::numeric_limits<double>::max();
  options.max_iterations = most_rounds;
  options.exact_operations = exact_operations;
  if (!start.empty()) options.start = &start;
  options.known_messages = &messages;
  solver::Solution solution = solver::solve(networks_.build(level), options);
  networks_.take_back();
  rounds_ += solution.iterations;
  if (solution.choice.empty() || !std::isfinite(solution.cost)) {
    throw Contradiction("no plan satisfies all pins together", -1, -1);
  }
  const bool has_ended = solution.stop_reason != solver::StopReason::kIterationLimit;
  return {std::move(solution.choice),
          {solution.cost, solution.lower_bound},
          has_ended ? 0 : most_rounds};
}

LevelSolver::Messages LevelSolver::messages_of_axes() const {
  Messages found;
  for (const auto& [id, messages] : messages_) {
    if (std::has_single_bit(static_cast<std::uint32_t>(id))) found.emplace(id, messages);
  }
  return found;
}

void LevelSolver::begin_with(const Messages& known,
                             const std::vector<std::int32_t>& node_there) {
  messages_ = known;
  for (auto& [id, messages] : messages_) messages.nodes = node_there;
}

double LevelSolver::least_of_ops(const InternedAssignment& assignment, AxisMask free) {
  const LevelOptions level = options_.find(assignment, 0, free);
  double total = 0;
  for (std::size_t o = 0; o < classes_.ops.size(); ++o) {
    const std::vector<double>& costs = store_.options_at(level.ops[o]).costs;
    total += classes_.ops[o].trips * *std::min_element(costs.begin(), costs.end());
  }
  // Adding up may round up.
  return total * (1 - 1e-12);
}

double LevelSolver::most_options(AxisMask free) const {
  double most = 1;
  for (const OpSignature& signature : classes_.signatures) {
    double options = 1;
    for (int axis = 0; axis < mesh_.rank(); ++axis) {
      if (!((free >> axis) & 1u)) continue;
      const std::int64_t size = mesh_.axis_sizes[axis];
      double of_axis = 1;
      for (const Factor& factor : program_.rules[signature.rule].factors) {
        of_axis += factor.kind != FactorKind::need_replication && factor.size % size == 0;
      }
      options *= of_axis;
    }
    most = std::max(most, options);
  }
  return most;
}

}  // namespace autoshard::planning
