#include "planning/plan_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

namespace autoshard::planning {
namespace {

/// Prices of memory that are tried, in units of reading a byte once. What a loop gathers anew
/// in each of its trips takes many times as long as that.
constexpr double price_ladder[] = {0, 1, 8, 64, 512, 4096, 1 << 15, 1 << 18, 1 << 21};
/// A plan that is made from another one is tried at so many prices, each so much higher.
constexpr int most_rises = 4;
constexpr double price_rise = 8;
/// Halvings, on a logarithmic scale, between a price whose plan does not fit and one whose
/// does.
constexpr int price_halvings = 3;
/// A plan that fits and takes up to so many times as long as one that does not need not be
/// looked for at lower prices.
constexpr double hardly_slower = 1.005;
/// A plan of few rounds without a price, which needs up to so many times the memory, may fit
/// once it is searched to the end.
constexpr double within_reach = 1.4;
/// The same where nothing else fits.
constexpr double within_last_reach = 2;
/// One that is searched to the end, and needs up to so many times the memory, may fit after
/// the last steps.
constexpr double within_last_steps = 1.1;
/// Programs whose values, cut by all devices, still take this share of the memory are tight.
constexpr double tight_share = 0.25;

/// A price between one whose plan does not fit and one whose does.
double middle_of(double unfit, double fit) {
  return unfit > 0 ? std::sqrt(unfit * fit) : fit / 4;
}

}  // namespace

PlanSearch::PlanSearch(const SearchTask& task)
    : task_(task), plans_(task), meshes_(task, plans_) {}
PlanSearch::~PlanSearch() = default;

PlanSearch::Unlimited::Unlimited(const SearchTask& task)
    : options(task.options),
      search({task.program, task.classes, task.memory, task.cluster, options, task.phases,
              task.watch}) {
  options.memory_limit = std::numeric_limits<double>::infinity();
}

std::int64_t PlanSearch::rounds() const {
  return plans_.rounds() + (unpriced_ ? unpriced_->rounds() : 0) +
         (unlimited_ ? unlimited_->search.rounds() : 0);
}

Candidate PlanSearch::run() {
  if (task_.options.mem_coeff) return of_coefficient(*task_.options.mem_coeff);
  return cheapest_that_fits();
}

std::optional<Candidate> PlanSearch::from(const Plan& previous, const KnownProgram* known,
                                          double coeff, bool may_skip) {
  Stage& on = plans_.stage(meshes_.single());
  if (known) plans_.begin_with(on, *known);
  Candidate found{&on, {}, 0, 0, 0, false, {}, coeff, {}};
  found.assignment = on.search.levels().interned(
      assignment_of(task_.program, task_.classes, on.search.costs(), previous));
  plans_.peak_points().push_back(on.search.peak_of(found.assignment).point);
  for (int rise = 0; rise < most_rises && !plans_.is_late(); ++rise) {
    found.prices = plans_.prices(found.coeff);
    found.objective = std::numeric_limits<double>::infinity();
    plans_.sweep(found, may_skip);
    if (std::isfinite(found.objective) && plans_.fits(plans_.evaluate(found))) return found;
    found.coeff = std::max(1.0, found.coeff * price_rise);
  }
  return std::nullopt;
}

bool PlanSearch::is_tight() const {
  double devices = 1;
  for (std::int64_t size : task_.program.mesh.axis_sizes) devices *= static_cast<double>(size);
  const std::vector<double> shards(task_.program.values.size(), devices);
  return peak(task_.memory.buffers, task_.memory.num_points, shards, {}).bytes >
         tight_share * task_.options.memory_limit;
}

void PlanSearch::add_one_axis(std::vector<Candidate>& pool, const Candidate& best) {
  const bool is_there = best.num_axes() == 1 && best.coeff == 0;
  if (!meshes_.may_merge() || plans_.is_exact() || is_there) return;
  task_.phases.start("one axis");
  Groups all(1);
  for (int axis = 0; axis < task_.program.mesh.rank(); ++axis) all.front().push_back(axis);
  const double most_seconds = best.seconds * (1 + plans_.axes_tolerance());
  const auto finish = [&](Candidate c) {
    plans_.sweep(c);
    plans_.join(c);
    pool.push_back(std::move(c));
    return plans_.fits(plans_.evaluate(pool.back()));
  };
  double unfit = 0;
  for (double coeff : price_ladder) {
    if (plans_.is_late() || (best.num_axes() == 1 && coeff >= best.coeff)) return;
    Candidate c = plans_.greedy_by_axis(all, coeff);
    // The one level is the whole mesh, so that its bound is one on all plans that fit.
    if (c.stage->search.bound_of_all(c.assignment) > most_seconds) return;
    if (finish(std::move(c))) {
      double fit = coeff;
      for (int halving = 0; fit > 0 && halving < price_halvings && !plans_.is_late();
           ++halving) {
        const double middle = middle_of(unfit, fit);
        (finish(plans_.greedy_by_axis(all, middle)) ? fit : unfit) = middle;
      }
      return;
    }
    // Prices save no time.
    if (pool.back().seconds > most_seconds) return;
    unfit = coeff;
  }
}

void PlanSearch::climb(std::vector<Candidate>& pool) {
  plans_.peak_points().clear();
  // Plans only get slower with the price: where those of one that does not fit are as slow as
  // what there is, higher ones find nothing.
  double unfit_seconds = 0;
  const auto fits_at = [&](double coeff) {
    const std::size_t before = pool.size();
    const Candidate best = meshes_.best_of(meshes_.at_price(coeff)).front();
    std::optional<Candidate> finer = plans_.split(best, best.objective);
    if (finer) pool.push_back(*std::move(finer));
    pool.push_back(best);
    task_.phases.start("memory");
    bool is_fitting = false;
    double seconds = std::numeric_limits<double>::infinity();
    for (std::size_t c = before; c < pool.size(); ++c) {
      if (plans_.fits(plans_.evaluate(pool[c]))) is_fitting = true;
      seconds = std::min(seconds, pool[c].seconds);
    }
    if (!is_fitting) unfit_seconds = std::max(unfit_seconds, seconds);
    return is_fitting;
  };
  const auto is_hopeless = [&] { return unfit_seconds >= useful_seconds(pool); };
  double unfit = 0;
  std::size_t rung = 0;
  while (rung < std::size(price_ladder) && !plans_.is_late() && !fits_at(price_ladder[rung])) {
    if (is_hopeless()) return;
    unfit = price_ladder[rung++];
  }
  if (rung == 0 || rung >= std::size(price_ladder) || plans_.is_late()) return;
  double fit = price_ladder[rung];
  if (rung + 1 < std::size(price_ladder)) fits_at(price_ladder[rung + 1]);
  for (int halving = 0; halving < price_halvings && !plans_.is_late(); ++halving) {
    if (is_hopeless()) return;
    const double middle = middle_of(unfit, fit);
    (fits_at(middle) ? fit : unfit) = middle;
  }
  const Candidate best = fastest_that_fits(pool);
  if (!is_hopeless()) lower_price(pool, best, 0, best.coeff);
}

double PlanSearch::useful_seconds(const std::vector<Candidate>& pool) const {
  double least = task_.options.most_seconds;
  for (const Candidate& c : pool) {
    if (plans_.fits(c)) least = std::min(least, c.seconds);
  }
  return least;
}

void PlanSearch::lower_price(std::vector<Candidate>& pool, const Candidate& start,
                             double unfit, double fit) {
  task_.phases.start("prices");
  for (int halving = 0; halving < price_halvings && !plans_.is_late(); ++halving) {
    const double middle = middle_of(unfit, fit);
    Candidate tried = plans_.at_prices(start, middle);
    plans_.sweep(tried);
    (plans_.fits(plans_.evaluate(tried)) ? fit : unfit) = middle;
    pool.push_back(std::move(tried));
  }
}

void PlanSearch::split_last(std::vector<Candidate>& pool, double unfit) {
  const Candidate* best = nullptr;
  for (const Candidate& c : pool) {
    const bool may_split = c.num_axes() < most_merged_axes && plans_.fits(c);
    if (may_split && (!best || c.seconds < best->seconds)) best = &c;
  }
  if (!best) return;
  const Candidate priced = plans_.at_prices(*best, best->coeff);
  std::optional<Candidate> finer = plans_.split(priced, priced.objective);
  if (!finer) return;
  task_.phases.start("memory");
  const bool is_fitting = plans_.fits(plans_.evaluate(*finer));
  pool.push_back(*finer);
  if (is_fitting) lower_price(pool, *finer, unfit, finer->coeff);
}

void PlanSearch::merge_alike(std::vector<Candidate>& pool, const Candidate& best) {
  if (!meshes_.may_merge() || plans_.is_late()) return;
  const Groups& groups = best.stage->groups;
  const Assignment assignment = best.stage->search.levels().resolved(best.assignment);
  Groups merged = {groups.front()};
  for (std::size_t g = 1; g < groups.size(); ++g) {
    if (always_together(assignment, static_cast<AxisIndex>(g - 1),
                        static_cast<AxisIndex>(g))) {
      merged.back().insert(merged.back().end(), groups[g].begin(), groups[g].end());
    } else {
      merged.push_back(groups[g]);
    }
  }
  if (merged.size() == groups.size()) return;
  task_.phases.start("joint");
  Candidate coarser = plans_.on_mesh(best, merged);
  plans_.sweep(coarser);
  plans_.join(coarser);
  plans_.evaluate(coarser);
  pool.push_back(std::move(coarser));
}

void PlanSearch::polish(std::vector<Candidate>& pool, const Candidate& best) {
  if (plans_.is_late()) return;
  task_.phases.start("polish");
  Candidate tried = plans_.at_prices(best, best.coeff);
  plans_.polish(tried);
  plans_.evaluate(tried);
  pool.push_back(std::move(tried));
}

std::size_t PlanSearch::first_that_fits(std::size_t rung, std::vector<Candidate>& quick) {
  task_.phases.start("levels");
  std::size_t last = std::size(price_ladder) - 1;
  while (rung < last && !plans_.is_late()) {
    const std::size_t middle = (rung + last) / 2;
    quick.push_back(plans_.greedy_by_axis(meshes_.single(), price_ladder[middle]));
    if (plans_.fits(plans_.evaluate(quick.back()))) {
      last = middle;
    } else {
      rung = middle + 1;
    }
  }
  return last;
}

std::size_t PlanSearch::lowest_that_fits(std::size_t rung, std::vector<Candidate>& pool) {
  const double least = std::min_element(pool.begin(), pool.end(), by_seconds)->seconds;
  while (rung > 1 && !plans_.is_late() &&
         fastest_that_fits(pool).seconds > hardly_slower * least) {
    bool is_fitting = false;
    for (Candidate& best : meshes_.best_of(meshes_.at_price(price_ladder[rung - 1]))) {
      task_.phases.start("memory");
      pool.push_back(std::move(best));
      if (plans_.fits(plans_.evaluate(pool.back()))) is_fitting = true;
    }
    if (!is_fitting) break;
    --rung;
  }
  return rung;
}

Candidate PlanSearch::fastest_that_fits(std::vector<Candidate>& pool) const {
  return planning::fastest_that_fits(pool, task_.options.memory_limit, 0,
                                     plans_.axes_tolerance());
}

void PlanSearch::give_up_if_slow(const Candidate& first) const {
  if (first.seconds > task_.options.give_up_seconds) throw GivenUp(first.seconds);
}

bool PlanSearch::is_within(double reach, const Candidate& c) const {
  return c.peak.bytes <= reach * task_.options.memory_limit;
}

std::vector<Candidate> PlanSearch::without_price(double reach) {
  std::vector<Candidate> list = meshes_.at_price(0);
  if (!is_within(reach, plans_.evaluate(list.front()))) return {};
  std::vector<Candidate> found = meshes_.best_of(std::move(list));
  task_.phases.start("memory");
  for (Candidate& c : found) plans_.evaluate(c);
  return found;
}

bool PlanSearch::has_fitting(const std::vector<Candidate>& pool) const {
  return std::any_of(pool.begin(), pool.end(),
                     [&](const Candidate& c) { return plans_.fits(c); });
}

bool PlanSearch::loses_nothing(const std::vector<Candidate>& pool) const {
  double least = std::numeric_limits<double>::infinity();
  for (const Candidate& c : pool) least = std::min(least, c.seconds);
  return std::any_of(pool.begin(), pool.end(), [&](const Candidate& c) {
    return plans_.fits(c) && c.seconds <= least * (1 + plans_.axes_tolerance());
  });
}

std::optional<Candidate> PlanSearch::free_that_fits() {
  unlimited_ = std::make_unique<Unlimited>(task_);
  Candidate found = unlimited_->search.cheapest_that_fits();
  if (!plans_.fits(found)) return std::nullopt;
  return found;
}

Candidate PlanSearch::finished(std::vector<Candidate>& pool) {
  add_one_axis(pool, fastest_that_fits(pool));
  merge_alike(pool, fastest_that_fits(pool));
  polish(pool, fastest_that_fits(pool));
  return fastest_that_fits(pool);
}

Candidate PlanSearch::cheapest_that_fits() {
  std::vector<Candidate> pool, quick;
  const bool asks_single = meshes_.may_merge() && !plans_.is_small();
  const std::size_t last = std::size(price_ladder) - 1;
  std::size_t rung = 0;
  if (asks_single && is_tight()) {
    task_.phases.start("levels");
    quick.push_back(plans_.greedy_by_axis(meshes_.single(), price_ladder[0]));
    const bool is_fitting = plans_.fits(plans_.evaluate(quick.back()));
    give_up_if_slow(quick.back());
    if (!is_fitting) {
      if (is_within(within_reach, quick.back())) {
        unpriced_ = std::make_unique<PlanSearch>(task_);
        pool = unpriced_->without_price(within_reach);
        if (loses_nothing(pool)) return unpriced_->finished(pool);
        const bool is_near = std::any_of(pool.begin(), pool.end(), [&](const Candidate& c) {
          return !plans_.fits(c) && is_within(within_last_steps, c);
        });
        if (is_near) {
          std::optional<Candidate> free = free_that_fits();
          if (free) return *std::move(free);
        }
      }
      rung = first_that_fits(1, quick);
    }
  }
  double unfit = rung > 0 ? price_ladder[rung - 1] : 0, fit = -1;
  while (true) {
    const double coeff = price_ladder[rung];
    std::vector<Candidate> list = meshes_.at_price(coeff);
    task_.phases.start("memory");
    pool.push_back(list.front());
    plans_.evaluate(pool.back());
    if (coeff == 0) give_up_if_slow(pool.back());
    if (plans_.fits(pool.back()) || plans_.is_small() || rung == last || plans_.is_late()) {
      if (plans_.fits(pool.back())) fit = coeff;
      for (Candidate& best : meshes_.best_of(std::move(list))) {
        task_.phases.start("memory");
        pool.push_back(std::move(best));
        if (plans_.fits(plans_.evaluate(pool.back()))) fit = coeff;
      }
      if (fit >= 0) break;
    }
    if (rung == last) break;
    // Without time for all prices, the highest one is the likeliest to fit.
    rung = plans_.is_late()           ? last
           : rung == 0 && asks_single ? first_that_fits(1, quick)
                                      : rung + 1;
    unfit = price_ladder[rung - 1];
  }
  // Axes that are used unlike may fit where merged ones do not.
  if (fit < 0) {
    pool.insert(pool.end(), quick.begin(), quick.end());
    const bool may_fit = std::any_of(pool.begin(), pool.end(), [&](const Candidate& c) {
      return c.coeff == 0 && is_within(within_last_reach, c);
    });
    if (may_fit && rung > 0 && !unpriced_ && !plans_.is_late() && !has_fitting(pool)) {
      unpriced_ = std::make_unique<PlanSearch>(task_);
      std::vector<Candidate> free = unpriced_->without_price(within_last_reach);
      if (has_fitting(free)) return unpriced_->finished(free);
    }
  }
  if (fit > 0 && asks_single) {
    rung = lowest_that_fits(rung, pool);
    fit = price_ladder[rung];
    unfit = price_ladder[rung - 1];
  }
  if (fit > 0) {
    task_.phases.start("prices");
    for (int halving = 0; plans_.is_small() && halving < price_halvings && !plans_.is_late();
         ++halving) {
      const double middle = middle_of(unfit, fit);
      pool.push_back(meshes_.best_of(meshes_.at_price(middle)).front());
      task_.phases.start("memory");
      (plans_.fits(plans_.evaluate(pool.back())) ? fit : unfit) = middle;
    }
    if (!plans_.is_small()) {
      lower_price(pool, fastest_that_fits(pool), unfit, fit);
      split_last(pool, unfit);
      if (task_.options.all_prices) climb(pool);
    }
  }
  return finished(pool);
}

Candidate PlanSearch::of_coefficient(double coeff) {
  std::vector<Candidate> pool;
  for (double step : price_ladder) {
    pool.push_back(meshes_.best_of(meshes_.at_price(step)).front());
    task_.phases.start("memory");
    plans_.evaluate(pool.back());
  }
  return planning::fastest_that_fits(pool, task_.options.memory_limit,
                                     coeff / task_.cluster.chip.memory_bandwidth, 0);
}

}  // namespace autoshard::planning
