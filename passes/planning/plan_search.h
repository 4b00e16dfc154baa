/// The search over meshes, whose axes are groups of the program's, and over prices of memory.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "planning/plan.h"
#include "planning/plan_maker.h"

namespace autoshard::planning {

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
  std::int64_t rounds() const { return plans_.rounds(); }

 private:
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

  const Program& program_;
  const Classes& classes_;
  const ProgramMemory& memory_;
  const Cluster& cluster_;
  const RecursiveOptions& options_;
  Phases& phases_;
  const bool may_merge_, may_group_;
  Groups single_;
  PlanMaker plans_;
};

}  // namespace autoshard::planning
