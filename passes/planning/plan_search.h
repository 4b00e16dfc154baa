/// The search over meshes, whose axes are groups of the program's, and over prices of memory.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "planning/mesh_search.h"
#include "planning/workers.h"

namespace autoshard::planning {

/// Groups of neighbouring axes.
using Groups = std::vector<std::vector<int>>;

/// A plan that was found.
struct Candidate {
  Stage* stage;
  Labels labels;
  /// With and without the prices of memory.
  double objective, seconds;
  /// No plan on the mesh that fits takes less, if all axes were decided together.
  double lower_bound;
  bool is_joint = false;
  Peak peak;
  double coeff;
  Prices prices;
};

/// Tries meshes and prices of memory.
class PlanSearch {
 public:
  PlanSearch(const Program& program, const Classes& classes, const ProgramMemory& memory,
             const Cluster& cluster, const RecursiveOptions& options,
             Clock::time_point deadline, Phases& phases);

  /// The plan that the options ask for. Throws `DoesNotFit`.
  Candidate run();

  /// A plan of the same program with other pins, decided again one axis at a time on its own
  /// mesh, at higher prices of memory if need be; nothing if it does not fit. Throws
  /// `Contradiction`.
  std::optional<Candidate> from(const Plan& previous, const KnownProgram* known, double coeff);

  /// Rounds of message passing so far, on all meshes.
  std::int64_t rounds() const;

 private:
  /// Message passing begins where it ended for the same program with other pins, but for what
  /// is pinned.
  void begin_with(Stage& on, const KnownProgram& known) const;

  bool fits(const Candidate& c) const { return c.peak.bytes <= options_.memory_limit; }

  Stage& stage(const Groups& groups);

  /// Axis by axis on one mesh.
  Candidate descend(const Groups& groups, double coeff);

  /// The same plan at the prices of a coefficient.
  Candidate at_prices(const Candidate& plan, double coeff);

  void sweep(Candidate& c);

  /// Each of some axes again, in few rounds.
  void glance(Candidate& c, AxisMask axes);

  void join(Candidate& c);

  void pairs(Candidate& c);

  /// Takes a candidate's peak and its seconds without prices.
  Candidate& weigh(Candidate& c);

  bool is_small() const;
  bool is_exact() const;

  /// Whether memory may decide: what the program keeps takes a good part of it even if every
  /// value is cut by all devices.
  bool is_tight() const;

  /// Plans at one price, swept on the meshes that suit it, the cheapest first; the last one is
  /// on single axes.
  std::vector<Candidate> shortlist(double coeff);

  /// The most promising of a shortlist, the one to take first. An axis is split where that
  /// pays without prices: at a price that may still change, memory beyond the limit counts.
  /// Else, and always in small programs, all axes are decided together.
  std::vector<Candidate> best_of(std::vector<Candidate> list);

  /// Few named axes that cost hardly more are better, but not in programs so small that their
  /// plan is to be the fastest.
  double axes_tolerance() const;

  /// Of plans that cost little more than the cheapest, the cheapest on the fewest axes.
  template <typename Cost>
  static Candidate* with_fewest_axes(std::vector<Candidate>& list, const Cost& cost,
                                     double tolerance) {
    double least = std::numeric_limits<double>::infinity();
    for (const Candidate& c : list) least = std::min(least, cost(c));
    Candidate* best = nullptr;
    for (Candidate& c : list) {
      if (cost(c) > least + tolerance * std::abs(least)) continue;
      const auto rank = [](const Candidate& of) { return of.stage->groups.size(); };
      if (!best || rank(c) < rank(*best) ||
          (rank(c) == rank(*best) && cost(c) < cost(*best))) {
        best = &c;
      }
    }
    return best;
  }

  /// A price between one whose plan does not fit and one whose does.
  static double middle_of(double unfit, double fit);

  /// All devices as one axis, where that may be taken, at its own price of memory: that of
  /// other meshes may be too high.
  void add_one_axis(std::vector<Candidate>& pool, const Candidate& best);

  /// A plan swept again at prices between one that fits and one that does not.
  void lower_price(std::vector<Candidate>& pool, const Candidate& start, double unfit,
                   double fit);

  /// Splits an axis of the fastest plan on few axes that fits, at its price. What memory that
  /// saves is worth nothing in itself, but a lower price may do then.
  void split_last(std::vector<Candidate>& pool, double unfit);

  /// Makes one axis of neighbours that the plan always uses together, and goes on from there.
  void merge_alike(std::vector<Candidate>& pool, const Candidate& best);

  /// Whether whatever is cut along one of two axes is cut along the other next.
  bool always_together(const Candidate& plan, AxisIndex major, AxisIndex minor) const;

  static bool by_objective(const Candidate& a, const Candidate& b);

  /// The best of the meshes that split an axis of a candidate's mesh in two, each starting
  /// from its plan; nothing if it saves too little for one axis more, or is not as far below
  /// `least` in the end.
  std::optional<Candidate> split(const Candidate& from, double least);

  /// The same plan on a mesh that splits axes of its own, or merges those it uses together.
  Candidate on_mesh(const Candidate& plan, const Groups& groups);

  Labels carried_over(const Candidate& from, Stage& to) const;

  /// All axes as one, and every way to make two of them.
  std::vector<Groups> two_groups() const;

  /// The first of the prices from `rung` on at which single axes fit, found by halving: what
  /// fits at one price is taken to fit at all higher ones, and the last one is not asked. The
  /// plans go to `quick`.
  std::size_t first_that_fits(std::size_t rung, std::vector<Candidate>& quick);

  /// Rising prices until a plan fits, then back towards the last one that did not.
  Candidate cheapest_that_fits();

  /// The best of a fixed set of plans: what it depends on is the program, not the coefficient,
  /// and of two coefficients the larger one never chooses the plan with the larger peak.
  Candidate of_coefficient(double coeff);

  /// Of the plans that cost up to `tolerance` more than the cheapest, one on the fewest axes.
  /// Throws `DoesNotFit`.
  Candidate fastest_that_fits(std::vector<Candidate>& pool, double price,
                              double tolerance) const;

  /// The price of a coefficient, spread over the moments at which plans had their peaks.
  Prices prices(double coeff) const;

  bool late() const { return Clock::now() >= deadline_; }

  const Program& program_;
  const Classes& classes_;
  const ProgramMemory& memory_;
  const Cluster& cluster_;
  const RecursiveOptions& options_;
  const Clock::time_point deadline_;
  Phases& phases_;
  const bool may_merge_, may_group_;
  Groups single_;
  Workers workers_;
  std::map<Groups, std::unique_ptr<Stage>> stages_;
  std::vector<std::int32_t> moments_;
};

}  // namespace autoshard::planning
