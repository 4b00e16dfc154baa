/// Which meshes suit a program at one price of memory.
#pragma once

#include <vector>

#include "planning/plan_maker.h"
#include "planning/search_task.h"

namespace autoshard::planning {

/// Tries meshes whose axes are groups of the program's.
class MeshShortlist {
 public:
  MeshShortlist(const SearchTask& task, PlanMaker& plans);

  /// Plans at one price, swept on the meshes that suit it, the cheapest first; the last one is
  /// on single axes.
  std::vector<Candidate> at_price(double coeff);

  /// The most promising of a shortlist, the one to take first. An axis is split where that
  /// pays without prices: at a price that may still change, memory beyond the limit counts.
  /// Else, and always in small programs, all axes are decided together.
  std::vector<Candidate> best_of(std::vector<Candidate> list);

  /// Whether axes of the program's mesh may become one axis of the plan's.
  bool may_merge() const { return may_merge_; }
  /// Every axis in a group of its own.
  const Groups& single() const { return single_; }

 private:
  /// One plan a mesh, decided axis by axis.
  struct Tried {
    /// On single axes.
    Candidate single;
    /// On meshes of at most two groups, the cheapest first.
    std::vector<Candidate> grouped;
  };

  /// All axes as one, and every split of them in two groups.
  std::vector<Groups> two_groups() const;
  Tried axis_by_axis(double coeff);
  void sweep_grouped(std::vector<Candidate>& list);
  std::vector<Candidate> decided_together(const std::vector<Candidate>& list);

  const SearchTask task_;
  PlanMaker& plans_;
  const bool may_merge_, may_group_;
  Groups single_;
};

}  // namespace autoshard::planning
