/// Plans that a search has found, and what makes better ones of them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "planning/candidate.h"
#include "planning/mesh_search.h"
#include "planning/search_task.h"
#include "planning/workers.h"

namespace autoshard::planning {

/// A plan on fewer axes may cost this much more than the best: few named axes are what users
/// read and partitioners handle well.
inline constexpr double merge_tolerance = 0.005;
/// Pairs of axes are decided together on meshes of at most so many.
inline constexpr std::size_t most_merged_axes = 3;

/// Makes plans on meshes whose axes are groups of the program's, and improves them at prices
/// of memory. Keeps the search of every mesh.
class PlanMaker {
 public:
  explicit PlanMaker(const SearchTask& task);

  /// The search on a mesh.
  Stage& stage(const Groups& groups);
  /// Message passing begins where it ended for the same program with other pins, but for what
  /// is pinned.
  void begin_with(Stage& on, const KnownProgram& known) const;
  /// Rounds of message passing so far, on all meshes.
  std::int64_t rounds() const;
  /// Those who work through lists of candidates.
  Workers& workers() { return workers_; }

  /// Axis by axis on one mesh.
  Candidate greedy_by_axis(const Groups& groups, double coeff);
  /// The same plan at the prices of a coefficient.
  Candidate at_prices(const Candidate& plan, double coeff);
  /// The same plan on a mesh that splits axes of its own, or merges those it uses together.
  Candidate on_mesh(const Candidate& plan, const Groups& groups);

  /// Decides every axis again until nothing improves.
  void sweep(Candidate& c, bool may_skip = false);
  /// Sweeps in as many rounds as bring progress.
  void polish(Candidate& c);
  /// Each of some axes again, in few rounds.
  void refine_axes(Candidate& c, AxisMask axes);
  /// All axes together in few rounds, where that is small enough.
  void refine_together(Candidate& c);
  /// All axes together where that is small enough, else in pairs.
  void join(Candidate& c);
  /// Every two axes together.
  void pairs(Candidate& c);
  /// The best of the meshes that split an axis of a candidate's mesh in two, each starting
  /// from its plan; nothing if it saves too little for one axis more, or is not as far below
  /// `least` in the end.
  std::optional<Candidate> split(const Candidate& from, double least);

  /// Takes a candidate's peak and its seconds without prices.
  Candidate& evaluate(Candidate& c);
  /// The price of a coefficient, spread over the program points at which plans had their
  /// peaks.
  Prices prices(double coeff) const;
  /// The program points at which plans had their peaks.
  std::vector<std::int32_t>& peak_points() { return peak_points_; }

  /// Whether a plan fits that is not evaluated yet.
  bool would_fit(Candidate& c) const {
    c.peak = c.stage->search.peak_of(c.assignment);
    return fits(c);
  }
  bool fits(const Candidate& c) const { return c.peak.bytes <= task_.options.memory_limit; }
  bool is_late() const { return task_.watch.is_over(); }
  /// Whether a program is searched on all meshes to the end, and whether its plan is to be the
  /// fastest on however many axes.
  bool is_small() const;
  /// Whether a program that is not small has the axes of its meshes decided together early.
  bool is_medium() const;
  bool is_exact() const;
  /// Few named axes that cost hardly more are better, but not in programs so small that their
  /// plan is to be the fastest.
  double axes_tolerance() const;

 private:
  InternedAssignment carried_over(const Candidate& from, Stage& to) const;

  const SearchTask task_;
  Workers workers_;
  std::map<Groups, std::unique_ptr<Stage>> stages_;
  std::vector<std::int32_t> peak_points_;
};

}  // namespace autoshard::planning
