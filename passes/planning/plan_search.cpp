#include "planning/plan_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

namespace autoshard::planning {
namespace {

/// Prices of memory that are tried, in units of reading a byte once.
constexpr double price_ladder[] = {0, 1, 8, 64, 512, 4096};
/// A plan that is made from another one is tried at so many prices, each so much higher.
constexpr int most_rises = 4;
constexpr double price_rise = 8;
/// Halvings, on a logarithmic scale, between a price whose plan does not fit and one whose
/// does.
constexpr int price_halvings = 3;
/// Programs whose values, cut by all devices, still take this share of the memory are tight.
constexpr double tight_share = 0.25;
/// Meshes on which the first pass costs more than this times the best are left there.
constexpr double worth_a_sweep = 1.3;
/// Meshes that cost more than this times the best are neither split nor have all axes decided
/// together.
constexpr double worth_joining = 1.06;
/// Only so many are swept in full and have all axes decided together; more where the program
/// is small.
constexpr std::size_t most_finalists = 2;

/// Pins that ask for certain axes or numbers of blocks, which a coarser mesh may not have.
bool pins_need_axes(const Program& program) {
  return std::any_of(program.pins.begin(), program.pins.end(), [](const Pin& pin) {
    return !pin.replicated.empty() ||
           std::any_of(pin.dims.begin(), pin.dims.end(), [](const DimPin& dim) {
             return !dim.axes.empty() || (dim.num_shards && *dim.num_shards > 1);
           });
  });
}

}  // namespace

PlanSearch::PlanSearch(const Program& program, const Classes& classes,
                       const ProgramMemory& memory, const Cluster& cluster,
                       const RecursiveOptions& options, Clock::time_point deadline,
                       Phases& phases)
    : program_(program),
      classes_(classes),
      memory_(memory),
      cluster_(cluster),
      options_(options),
      phases_(phases),
      may_merge_(options.merge_axes && program.mesh.rank() > 1 && !pins_need_axes(program)),
      // Also on a mesh that stays as it is, plans on coarser ones are good starts.
      may_group_(may_merge_ || (program.mesh.rank() > 2 && !pins_need_axes(program))),
      plans_(program, classes, memory, cluster, options, deadline, phases) {
  for (int axis = 0; axis < program.mesh.rank(); ++axis) single_.push_back({axis});
}

Candidate PlanSearch::run() {
  if (options_.mem_coeff) return of_coefficient(*options_.mem_coeff);
  return cheapest_that_fits();
}

std::optional<Candidate> PlanSearch::from(const Plan& previous, const KnownProgram* known,
                                          double coeff) {
  Stage& on = plans_.stage(single_);
  if (known) plans_.begin_with(on, *known);
  Candidate found{&on, {}, 0, 0, 0, false, {}, coeff, {}};
  found.labels = on.search.levels().labels_of(
      assignment_of(program_, classes_, on.search.costs(), previous));
  plans_.peak_points().push_back(on.search.peak_of(found.labels).moment);
  for (int rise = 0; rise < most_rises && !plans_.late(); ++rise) {
    found.prices = plans_.prices(found.coeff);
    found.objective = std::numeric_limits<double>::infinity();
    plans_.sweep(found);
    if (std::isfinite(found.objective) && plans_.fits(plans_.weigh(found))) return found;
    found.coeff = std::max(1.0, found.coeff * price_rise);
  }
  return std::nullopt;
}

bool PlanSearch::is_tight() const {
  double devices = 1;
  for (std::int64_t size : program_.mesh.axis_sizes) devices *= static_cast<double>(size);
  const std::vector<double> shards(program_.values.size(), devices);
  return peak(memory_.buffers, memory_.num_points, shards, {}).bytes >
         tight_share * options_.memory_limit;
}

std::vector<Candidate> PlanSearch::shortlist(double coeff) {
  phases_.start("levels");
  std::vector<Groups> meshes = {single_};
  bool is_single_one_of_two = false;
  if (may_group_ && !plans_.late()) {
    for (const Groups& groups : two_groups()) {
      if (groups == single_) {
        is_single_one_of_two = true;  // a mesh has one search, and no two threads share it
      } else {
        meshes.push_back(groups);
      }
    }
  }
  for (const Groups& groups : meshes) plans_.stage(groups);
  std::vector<Candidate> tried(meshes.size());
  plans_.workers().for_each(
      tried.size(), [&](std::size_t i) { tried[i] = plans_.descend(meshes[i], coeff); });
  Candidate single = std::move(tried.front());
  tried.erase(tried.begin());
  if (is_single_one_of_two) tried.push_back(single);
  std::stable_sort(tried.begin(), tried.end(), PlanMaker::by_objective);
  phases_.start("sweeps");
  const double swept_up_to = tried.empty() ? 0 : tried.front().objective * worth_a_sweep;
  const auto sweep_first = [&](std::size_t count, const auto& again) {
    plans_.workers().for_each(std::min(tried.size(), count), [&](std::size_t i) {
      if (tried[i].objective <= swept_up_to && !plans_.late()) again(tried[i]);
    });
    std::stable_sort(tried.begin(), tried.end(), PlanMaker::by_objective);
  };
  // What the first axis does when it knows of the second shows which meshes are worth more.
  if (!plans_.is_small()) {
    sweep_first(tried.size(),
                [&](Candidate& c) { plans_.glance(c, all_axes(c.stage->mesh) >> 1); });
  }
  // A plan on one axis is a plan on every mesh: axis by axis, none begins with less.
  if (tried.size() > 1 && tried.front().stage->groups.size() == 1) {
    Candidate from_one = plans_.on_mesh(tried.front(), tried[1].stage->groups);
    if (from_one.objective < tried[1].objective) tried[1] = std::move(from_one);
  }
  sweep_first(plans_.is_small() ? tried.size() : most_finalists,
              [&](Candidate& c) { plans_.sweep(c); });
  // Single axes are swept if nothing else can be, if there is time to be exact, or if they
  // were cheaper before.
  if (tried.empty() || plans_.is_small() ||
      tried.front().objective > single.objective * (1 + merge_tolerance)) {
    plans_.sweep(single);
  }
  if (!may_merge_ && !tried.empty()) {
    Candidate finer = plans_.on_mesh(tried.front(), single_);
    plans_.sweep(finer);
    if (finer.objective < single.objective) single = std::move(finer);
    tried.clear();
  }
  tried.push_back(std::move(single));
  return tried;
}

std::vector<Candidate> PlanSearch::best_of(std::vector<Candidate> list) {
  phases_.start("joint");
  Candidate single = std::move(list.back());
  list.pop_back();
  if (list.empty() || plans_.is_small()) plans_.join(single);
  if (list.empty()) return {single};
  list.resize(std::min(list.size(), most_finalists));
  const double worth_up_to = list.front().objective * worth_joining;
  while (list.back().objective > worth_up_to) list.pop_back();
  std::optional<Candidate> finer;
  if (!plans_.is_small() && list.front().prices.empty()) {
    const double least = list.front().objective;
    for (std::size_t i = 0; i < list.size() && !finer; ++i)
      finer = plans_.split(list[i], least);
  }
  if (!finer) {
    phases_.start("joint");
    plans_.workers().for_each(list.size(), [&](std::size_t i) {
      if (!plans_.late()) plans_.join(list[i]);
    });
  }
  if (plans_.is_small()) {
    const Candidate& best =
        *std::min_element(list.begin(), list.end(), PlanMaker::by_objective);
    finer = plans_.split(best, best.objective);
  }
  if (finer) list.push_back(*std::move(finer));
  list.push_back(std::move(single));
  const auto cost = [](const Candidate& c) { return c.objective; };
  std::swap(*with_fewest_axes(list, cost, plans_.axes_tolerance()), list.front());
  return list;
}

double PlanSearch::middle_of(double unfit, double fit) {
  return unfit > 0 ? std::sqrt(unfit * fit) : fit / 4;
}

void PlanSearch::add_one_axis(std::vector<Candidate>& pool, const Candidate& best) {
  const bool is_there = best.stage->groups.size() == 1 && best.coeff == 0;
  if (!may_merge_ || plans_.is_exact() || is_there) return;
  phases_.start("one axis");
  Groups all(1);
  for (int axis = 0; axis < program_.mesh.rank(); ++axis) all.front().push_back(axis);
  const double most_seconds = best.seconds * (1 + plans_.axes_tolerance());
  const auto finish = [&](Candidate c) {
    plans_.sweep(c);
    plans_.join(c);
    pool.push_back(std::move(c));
    return plans_.fits(plans_.weigh(pool.back()));
  };
  double unfit = 0;
  for (double coeff : price_ladder) {
    if (plans_.late() || (best.stage->groups.size() == 1 && coeff >= best.coeff)) return;
    Candidate c = plans_.descend(all, coeff);
    // The one level is the whole mesh, so that its bound is one on all plans that fit.
    if (c.stage->search.bound_of_all(c.labels) > most_seconds) return;
    if (finish(std::move(c))) {
      double fit = coeff;
      for (int halving = 0; fit > 0 && halving < price_halvings && !plans_.late(); ++halving) {
        const double middle = middle_of(unfit, fit);
        (finish(plans_.descend(all, middle)) ? fit : unfit) = middle;
      }
      return;
    }
    // Prices save no time.
    if (pool.back().seconds > most_seconds) return;
    unfit = coeff;
  }
}

void PlanSearch::lower_price(std::vector<Candidate>& pool, const Candidate& start,
                             double unfit, double fit) {
  phases_.start("prices");
  for (int halving = 0; halving < price_halvings && !plans_.late(); ++halving) {
    const double middle = middle_of(unfit, fit);
    Candidate tried = plans_.at_prices(start, middle);
    plans_.sweep(tried);
    (plans_.fits(plans_.weigh(tried)) ? fit : unfit) = middle;
    pool.push_back(std::move(tried));
  }
}

void PlanSearch::split_last(std::vector<Candidate>& pool, double unfit) {
  const Candidate* best = nullptr;
  for (const Candidate& c : pool) {
    const bool may_split = c.stage->groups.size() < most_merged_axes && plans_.fits(c);
    if (may_split && (!best || c.seconds < best->seconds)) best = &c;
  }
  if (!best) return;
  const Candidate priced = plans_.at_prices(*best, best->coeff);
  std::optional<Candidate> finer = plans_.split(priced, priced.objective);
  if (!finer) return;
  phases_.start("memory");
  const bool is_fitting = plans_.fits(plans_.weigh(*finer));
  pool.push_back(*finer);
  if (is_fitting) lower_price(pool, *finer, unfit, finer->coeff);
}

void PlanSearch::merge_alike(std::vector<Candidate>& pool, const Candidate& best) {
  if (!may_merge_ || plans_.late()) return;
  const Groups& groups = best.stage->groups;
  Groups merged = {groups.front()};
  for (std::size_t g = 1; g < groups.size(); ++g) {
    if (plans_.always_together(best, static_cast<AxisIndex>(g - 1),
                               static_cast<AxisIndex>(g))) {
      merged.back().insert(merged.back().end(), groups[g].begin(), groups[g].end());
    } else {
      merged.push_back(groups[g]);
    }
  }
  if (merged.size() == groups.size()) return;
  phases_.start("joint");
  Candidate coarser = plans_.on_mesh(best, merged);
  plans_.sweep(coarser);
  plans_.join(coarser);
  plans_.weigh(coarser);
  pool.push_back(std::move(coarser));
}

std::vector<Groups> PlanSearch::two_groups() const {
  std::vector<Groups> result;
  const int rank = program_.mesh.rank();
  for (int first = rank; first > 0; --first) {
    Groups groups(first < rank ? 2 : 1);
    for (int axis = 0; axis < rank; ++axis) groups[axis < first ? 0 : 1].push_back(axis);
    result.push_back(std::move(groups));
  }
  return result;
}

std::size_t PlanSearch::first_that_fits(std::size_t rung, std::vector<Candidate>& quick) {
  phases_.start("levels");
  std::size_t last = std::size(price_ladder) - 1;
  while (rung < last && !plans_.late()) {
    const std::size_t middle = (rung + last) / 2;
    quick.push_back(plans_.descend(single_, price_ladder[middle]));
    if (plans_.fits(plans_.weigh(quick.back()))) {
      last = middle;
    } else {
      rung = middle + 1;
    }
  }
  return last;
}

Candidate PlanSearch::cheapest_that_fits() {
  std::vector<Candidate> pool, quick;
  const bool asks_single = may_merge_ && !plans_.is_small();
  const std::size_t last = std::size(price_ladder) - 1;
  std::size_t rung = 0;
  if (asks_single && is_tight()) {
    phases_.start("levels");
    quick.push_back(plans_.descend(single_, price_ladder[0]));
    if (!plans_.fits(plans_.weigh(quick.back()))) rung = first_that_fits(1, quick);
  }
  double unfit = rung > 0 ? price_ladder[rung - 1] : 0, fit = -1;
  while (true) {
    const double coeff = price_ladder[rung];
    std::vector<Candidate> list = shortlist(coeff);
    phases_.start("memory");
    pool.push_back(list.front());
    if (plans_.fits(plans_.weigh(pool.back())) || plans_.is_small() || rung == last ||
        plans_.late()) {
      if (plans_.fits(pool.back())) fit = coeff;
      for (Candidate& best : best_of(std::move(list))) {
        phases_.start("memory");
        pool.push_back(std::move(best));
        if (plans_.fits(plans_.weigh(pool.back()))) fit = coeff;
      }
      if (fit >= 0) break;
    }
    if (rung == last) break;
    // Without time for all prices, the highest one is the likeliest to fit.
    rung = plans_.late()              ? last
           : rung == 0 && asks_single ? first_that_fits(1, quick)
                                      : rung + 1;
    unfit = price_ladder[rung - 1];
  }
  // Axes that are used unlike may fit where merged ones do not.
  if (fit < 0) pool.insert(pool.end(), quick.begin(), quick.end());
  if (fit > 0) {
    phases_.start("prices");
    for (int halving = 0; plans_.is_small() && halving < price_halvings && !plans_.late();
         ++halving) {
      const double middle = middle_of(unfit, fit);
      pool.push_back(best_of(shortlist(middle)).front());
      phases_.start("memory");
      (plans_.fits(plans_.weigh(pool.back())) ? fit : unfit) = middle;
    }
    if (!plans_.is_small()) {
      lower_price(pool, fastest_that_fits(pool, 0, plans_.axes_tolerance()), unfit, fit);
      split_last(pool, unfit);
    }
  }
  add_one_axis(pool, fastest_that_fits(pool, 0, plans_.axes_tolerance()));
  merge_alike(pool, fastest_that_fits(pool, 0, plans_.axes_tolerance()));
  return fastest_that_fits(pool, 0, plans_.axes_tolerance());
}

Candidate PlanSearch::of_coefficient(double coeff) {
  std::vector<Candidate> pool;
  for (double step : price_ladder) {
    pool.push_back(best_of(shortlist(step)).front());
    phases_.start("memory");
    plans_.weigh(pool.back());
  }
  return fastest_that_fits(pool, coeff / cluster_.chip.memory_bandwidth, 0);
}

Candidate PlanSearch::fastest_that_fits(std::vector<Candidate>& pool, double price,
                                        double tolerance) const {
  const Candidate* smallest = &pool.front();
  for (const Candidate& candidate : pool) {
    if (candidate.peak.bytes < smallest->peak.bytes) smallest = &candidate;
  }
  const auto cost = [&](const Candidate& c) {
    return plans_.fits(c) ? c.seconds + price * c.peak.bytes
                          : std::numeric_limits<double>::infinity();
  };
  Candidate* best = with_fewest_axes(pool, cost, tolerance);
  if (!plans_.fits(*best)) {
    throw DoesNotFit("no plan was found that fits the memory of a device",
                     options_.memory_limit, smallest->peak);
  }
  // What was proved at one price holds at all.
  for (const Candidate& other : pool) {
    if (other.stage != best->stage || !other.is_joint) continue;
    best->lower_bound = std::max(best->lower_bound, other.lower_bound);
    best->is_joint = true;
  }
  return *best;
}

}  // namespace autoshard::planning
