/// The search for a plan on one mesh: axis by axis, in pairs, or all axes together.
#pragma once

#include <cstdint>
#include <vector>

#include "planning/level.h"
#include "planning/phases.h"
#include "planning/search_options.h"
#include "planning/search_task.h"
#include "planning/seconds.h"
#include "planning/transients.h"

namespace autoshard::planning {

/// Rounds in which an axis is decided again.
inline constexpr Rounds mesh_sweep_rounds{10, 60, 1'500'000};
/// Rounds in which the axes of the plan that won are decided once more: as many as bring
/// progress, in all but the widest networks.
inline constexpr Rounds mesh_polish_rounds{10, 200, 4'000'000};
/// An improvement smaller than this part of the objective ends the sweeps.
inline constexpr double least_gain = 1e-6;
/// An axis is decided again if the others have saved more than this part since: levels are not
/// solved more exactly than that.
inline constexpr double worth_deciding_again = 1e-4;

/// The search on one mesh.
class MeshSearch {
 public:
  MeshSearch(const ProgramOnMesh& on, const RecursiveOptions& options, Watch& watch);

  LevelSolver& levels() { return levels_; }
  const Costs& costs() const { return costs_; }
  std::int64_t rounds() const { return levels_.rounds(); }
  void set_prices(const Prices& prices) { costs_.set_prices(prices); }
  /// Nothing is charged for memory, but as much of sums is reduced once as at these prices.
  void set_free(const Prices& deciding) { costs_.set_prices({}, deciding); }

  /// One level an axis, the first axis first, at `prices` in the end: those of an axis are for
  /// bytes as they are if all that is held then is cut along all axes that follow.
  InternedAssignment greedy_by_axis(const Prices& prices);

  /// Every level again until nothing improves. `reached` is the objective of `assignment`;
  /// returns the new one. Where no plan was reached, `may_skip` passes over an axis that
  /// cannot be decided alone: another one may do what pins ask for. Throws `Contradiction`.
  double sweep(InternedAssignment& assignment, double reached, bool may_skip = false,
               const Rounds& rounds = mesh_sweep_rounds);

  /// Each of some axes again, in few rounds.
  double refine_axes(InternedAssignment& assignment, AxisMask axes, double reached);

  /// All axes together in few rounds, if that is small enough.
  double refine_together(InternedAssignment& assignment, double reached);

  /// Every two axes together, where an op has few enough options.
  double pairs(InternedAssignment& assignment, double reached);

  /// All axes together, if that is small enough.
  bool all_together(InternedAssignment& assignment);

  /// Less than the seconds of any plan that differs from `assignment` in one axis.
  double bound_of_axes(const InternedAssignment& assignment, const Rounds& rounds);

  /// Less than the seconds of any plan on the mesh that keeps within the memory limit, after
  /// all axes were decided together as `assignment`. Where memory has a price, what ops take
  /// at least may say more than what is left of the network's bound without it.
  double bound_of_all(const InternedAssignment& assignment);

  const LevelResult& result() const { return result_; }
  bool is_late() const { return watch_.is_over(); }

  /// Bytes of the plan at its worst program point, with parts of sums that are to be reduced
  /// once.
  Peak peak_of(const InternedAssignment& assignment);

 private:
  double joint_options() const;

  double decide(InternedAssignment& assignment, AxisMask free, const Rounds& rounds,
                double reached);

  const ProgramOnMesh on_;
  const RecursiveOptions& options_;
  Watch& watch_;
  AxisOrders orders_;
  SecondsCosts costs_;
  LevelSolver levels_;
  AxisMask all_;
  LevelResult result_;
};

/// Groups of neighbouring axes.
using Groups = std::vector<std::vector<int>>;

/// A mesh whose axes are groups of another's, and the search on it.
struct Stage {
  Stage(const SearchTask& task, Groups axis_groups)
      : groups(std::move(axis_groups)),
        mesh(merged(task.program.mesh, groups)),
        cluster(merged(task.cluster, groups)),
        search({task.program, mesh, task.classes, task.memory, cluster}, task.options,
               task.watch) {}

  static Mesh merged(const Mesh& whole, const Groups& groups) {
    Mesh mesh{{}, whole.has_all_to_all};
    for (const std::vector<int>& group : groups) {
      std::int64_t size = 1;
      for (int axis : group) size *= whole.axis_sizes[axis];
      mesh.axis_sizes.push_back(size);
    }
    return mesh;
  }

  static Cluster merged(const Cluster& links, const Groups& groups) {
    Cluster cluster = links;
    cluster.axes.clear();
    for (const std::vector<int>& group : groups) {
      cluster.axes.emplace_back();
      for (int axis : group) {
        const auto& parts = links.axes[axis];
        cluster.axes.back().insert(cluster.axes.back().end(), parts.begin(), parts.end());
      }
    }
    return cluster;
  }

  Groups groups;
  Mesh mesh;
  Cluster cluster;
  MeshSearch search;
};

}  // namespace autoshard::planning
