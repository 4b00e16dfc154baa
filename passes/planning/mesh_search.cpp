#include "planning/mesh_search.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

namespace autoshard::planning {
namespace {

/// Most options of one op for axes to be decided together, and the same in programs of at most
/// `tiny_program` classes of ops.
constexpr double most_joint_options = 200;
constexpr double most_tiny_options = 2000;
constexpr std::size_t tiny_program = 40;
constexpr Rounds mesh_first_rounds{8, 12, 0};
/// All meshes have one sweep of few rounds, which shows which are worth more; what is swept in
/// full needs more than that to leave a bad optimum.
constexpr Rounds mesh_refine_rounds{10, 10, 0};
constexpr Rounds mesh_joint_rounds{10, 100, 400'000, 2e7};

}  // namespace

MeshSearch::MeshSearch(const ProgramOnMesh& on, const RecursiveOptions& options, Watch& watch)
    : on_(on),
      options_(options),
      watch_(watch),
      orders_(on.mesh, on.program.pins),
      costs_(on),
      levels_(on.program, on.mesh, on.classes, costs_, orders_),
      all_(all_axes(on.mesh)) {}

InternedAssignment MeshSearch::greedy_by_axis(const Prices& prices) {
  InternedAssignment assignment = levels_.unsplit();
  AxisMask decided = 0;
  double devices = 1;  // along axes that are decided later
  for (std::int64_t size : on_.mesh.axis_sizes) devices *= static_cast<double>(size);
  for (int axis = 0; axis < on_.mesh.rank(); ++axis) {
    devices /= static_cast<double>(on_.mesh.axis_sizes[axis]);
    Prices cut_further = prices;
    for (auto& [point, price] : cut_further) price /= devices;
    costs_.set_prices(cut_further);
    result_ = levels_.solve(assignment, decided, 1u << axis, mesh_first_rounds, options_.seed,
                            false);
    decided |= 1u << axis;
  }
  return assignment;
}

double MeshSearch::sweep(InternedAssignment& assignment, double reached, bool may_skip,
                         const Rounds& rounds) {
  std::vector<double> decided_at(static_cast<std::size_t>(on_.mesh.rank()));
  for (int sweep = 0; sweep < options_.sweeps; ++sweep) {
    const double before = reached;
    std::optional<Contradiction> contradiction;
    for (int axis = 0; axis < on_.mesh.rank(); ++axis) {
      const bool is_new =
          sweep == 0 || reached < decided_at[axis] * (1 - worth_deciding_again);
      if (!is_new) continue;
      try {
        reached = decide(assignment, 1u << axis, rounds, reached);
      } catch (const Contradiction& found) {
        if (!may_skip || std::isfinite(reached)) throw;
        contradiction = found;
      }
      decided_at[axis] = reached;
    }
    if (contradiction && !std::isfinite(reached)) throw *contradiction;
    if (!(reached < before * (1 - least_gain))) break;
  }
  return reached;
}

double MeshSearch::refine_axes(InternedAssignment& assignment, AxisMask axes, double reached) {
  for (int axis = 0; axis < on_.mesh.rank() && options_.sweeps > 0; ++axis) {
    if ((axes >> axis) & 1u)
      reached = decide(assignment, 1u << axis, mesh_refine_rounds, reached);
  }
  return reached;
}

double MeshSearch::refine_together(InternedAssignment& assignment, double reached) {
  if (options_.sweeps == 0 || levels_.most_options(all_) > joint_options()) return reached;
  return decide(assignment, all_, mesh_refine_rounds, reached);
}

double MeshSearch::pairs(InternedAssignment& assignment, double reached) {
  const int rank = on_.mesh.rank();
  for (int a = 0; a < rank; ++a) {
    for (int b = a + 1; b < rank; ++b) {
      const AxisMask free = (1u << a) | (1u << b);
      if (levels_.most_options(free) > joint_options()) continue;
      reached = decide(assignment, free, mesh_sweep_rounds, reached);
    }
  }
  return reached;
}

bool MeshSearch::all_together(InternedAssignment& assignment) {
  if (levels_.most_options(all_) > joint_options() || is_late()) return false;
  result_ = levels_.solve(assignment, 0, all_, mesh_joint_rounds, options_.seed, true);
  return true;
}

double MeshSearch::bound_of_axes(const InternedAssignment& assignment, const Rounds& rounds) {
  costs_.set_prices({});
  double least = levels_.objective(assignment);
  for (int axis = 0; axis < on_.mesh.rank(); ++axis) {
    if (is_late()) return 0;
    InternedAssignment tried = assignment;
    const LevelResult level =
        levels_.solve(tried, all_ & ~(1u << axis), 1u << axis, rounds, options_.seed, true);
    least = std::min(least, level.lower_bound);
  }
  return least - costs_.most_untimed_cost(options_.memory_limit);
}

double MeshSearch::bound_of_all(const InternedAssignment& assignment) {
  return std::max(result_.lower_bound - costs_.most_untimed_cost(options_.memory_limit),
                  levels_.least_of_ops(assignment, all_));
}

Peak MeshSearch::peak_of(const InternedAssignment& assignment) {
  const Assignment all = levels_.resolved(assignment);
  return planning::peak_of(on_, all, shards_by_value(on_, all), costs_.parts_of_sums(all));
}

double MeshSearch::joint_options() const {
  return on_.classes.ops.size() <= tiny_program ? most_tiny_options : most_joint_options;
}

double MeshSearch::decide(InternedAssignment& assignment, AxisMask free, const Rounds& rounds,
                          double reached) {
  if (is_late()) return reached;
  InternedAssignment tried = assignment;
  const LevelResult result =
      levels_.solve(tried, all_ & ~free, free, rounds, options_.seed, true);
  if (!(result.objective < reached)) return reached;
  assignment = std::move(tried);
  result_ = result;
  return result.objective;
}

}  // namespace autoshard::planning
