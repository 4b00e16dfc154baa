/// The search over meshes, whose axes are groups of the program's, and over prices of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "planning/mesh_shortlist.h"
#include "planning/plan.h"
#include "planning/plan_maker.h"

namespace autoshard::planning {

/// Tries meshes and prices of memory.
class PlanSearch {
 public:
  explicit PlanSearch(const SearchTask& task);
  ~PlanSearch();

  /// The plan that the options ask for. Throws `DoesNotFit` and `GivenUp`.
  Candidate run();

  /// A plan of the same program with other pins, decided again one axis at a time on its own
  /// mesh, at higher prices of memory if need be; nothing if it does not fit. `may_skip` as of
  /// `MeshSearch::sweep`. Throws `Contradiction`.
  std::optional<Candidate> from(const Plan& previous, const KnownProgram* known, double coeff,
                                bool may_skip = false);

  /// Rounds of message passing so far, on all meshes.
  std::int64_t rounds() const;

 private:
  struct Unlimited;

  /// Whether memory may decide: what the program keeps takes a good part of it even if every
  /// value is cut by all devices.
  bool is_tight() const;

  /// All devices as one axis, where that may be taken, at its own price of memory: that of
  /// other meshes may be too high.
  void add_one_axis(std::vector<Candidate>& pool, const Candidate& best);

  /// Rising prices until a plan fits that was searched to the end, and back towards the last
  /// one that did not, by the peaks of these plans alone. Points at which plans of few rounds
  /// need most share a price, and those of the plans that come out have too little of it.
  void climb(std::vector<Candidate>& pool);

  /// Plans have to be faster than this to be of use: than those that fit, and as is asked for.
  double useful_seconds(const std::vector<Candidate>& pool) const;

  /// A plan swept again at prices between one that fits and one that does not.
  void lower_price(std::vector<Candidate>& pool, const Candidate& start, double unfit,
                   double fit);

  /// Splits an axis of the fastest plan on few axes that fits, at its price. What memory that
  /// saves is worth nothing in itself, but a lower price may do then.
  void split_last(std::vector<Candidate>& pool, double unfit);

  /// Makes one axis of neighbours that the plan always uses together, and goes on from there.
  void merge_alike(std::vector<Candidate>& pool, const Candidate& best);
  /// Adds the best plan, decided once more by as many rounds as bring progress.
  void polish(std::vector<Candidate>& pool, const Candidate& best);

  /// The first of the prices from `rung` on at which single axes fit, found by halving: what
  /// fits at one price is taken to fit at all higher ones, and the last one is not asked. The
  /// plans go to `quick`.
  std::size_t first_that_fits(std::size_t rung, std::vector<Candidate>& quick);

  /// The lowest of the prices up to `rung` at which plans fit that are searched to the end:
  /// what single axes need, axis by axis, is a guess. No lower one is tried where that can
  /// save next to nothing.
  std::size_t lowest_that_fits(std::size_t rung, std::vector<Candidate>& pool);

  /// Throws `GivenUp` if the first plan, without a price of memory, is that slow.
  void give_up_if_slow(const Candidate& first) const;

  /// Whether a plan without a price, of few rounds, needs at most `reach` times the memory.
  bool is_within(double reach, const Candidate& c) const;
  /// Plans without a price, searched to the end; none if they are out of reach.
  std::vector<Candidate> without_price(double reach);
  bool has_fitting(const std::vector<Candidate>& pool) const;
  /// Whether one that fits is as fast as the fastest of all.
  bool loses_nothing(const std::vector<Candidate>& pool) const;

  /// The plan that is found where memory has no limit, if it fits: the last steps of a search
  /// may lower a peak by some percent.
  std::optional<Candidate> free_that_fits();

  /// The best of a pool, with what the last steps make of it.
  Candidate finished(std::vector<Candidate>& pool);

  /// Rising prices until a plan fits, then back towards the last one that did not.
  Candidate cheapest_that_fits();

  /// The best of a fixed set of plans: what it depends on is the program, not the coefficient,
  /// and of two coefficients the larger one never chooses the plan with the larger peak.
  Candidate of_coefficient(double coeff);

  /// One of the fastest plans that fit, on the fewest axes. Throws `DoesNotFit`.
  Candidate fastest_that_fits(std::vector<Candidate>& pool) const;

  const SearchTask task_;
  PlanMaker plans_;
  MeshShortlist meshes_;
  /// The search without a price, apart: where that does not fit, it is to decide nothing about
  /// those with prices.
  std::unique_ptr<PlanSearch> unpriced_;
  std::unique_ptr<Unlimited> unlimited_;
};

/// A search in which memory has no limit.
struct PlanSearch::Unlimited {
  explicit Unlimited(const SearchTask& task);

  RecursiveOptions options;
  PlanSearch search;
};

}  // namespace autoshard::planning
