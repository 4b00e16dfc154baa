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
/// A plan on fewer axes may cost this much more than the best: few named axes are what users
/// read and partitioners handle well.
constexpr double merge_tolerance = 0.005;
/// The same where one switch connects all devices, so that more axes use no other links: the
/// model does not see what they take, such as gathers in two steps that write a copy between
/// them and recomputed values in more than one layout.
constexpr double switched_tolerance = 0.015;
/// Programs of at most so many classes of ops are searched on all meshes to the end ...
constexpr std::size_t small_program = 300;
/// ... and those of at most so many take the fastest plan, on however many axes.
constexpr std::size_t exact_program = 150;
constexpr unsigned most_threads = 4;
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
/// Pairs of axes are decided together on meshes of at most so many.
constexpr std::size_t most_merged_axes = 3;

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
      deadline_(deadline),
      phases_(phases),
      may_merge_(options.merge_axes && program.mesh.rank() > 1 && !pins_need_axes(program)),
      // Also on a mesh that stays as it is, plans on coarser ones are good starts.
      may_group_(may_merge_ || (program.mesh.rank() > 2 && !pins_need_axes(program))),
      workers_(most_threads) {
  for (int axis = 0; axis < program.mesh.rank(); ++axis) single_.push_back({axis});
}

Candidate PlanSearch::run() {
  if (options_.mem_coeff) return of_coefficient(*options_.mem_coeff);
  return cheapest_that_fits();
}

std::optional<Candidate> PlanSearch::from(const Plan& previous, const KnownProgram* known,
                                          double coeff) {
  Stage& on = stage(single_);
  if (known) begin_with(on, *known);
  Candidate found{&on, {}, 0, 0, 0, false, {}, coeff, {}};
  found.labels =
      labels_of(program_, classes_, on.search.levels(), on.search.costs(), previous);
  moments_.push_back(on.search.peak_of(found.labels).moment);
  for (int rise = 0; rise < most_rises && !late(); ++rise) {
    found.prices = prices(found.coeff);
    found.objective = std::numeric_limits<double>::infinity();
    sweep(found);
    if (std::isfinite(found.objective) && fits(weigh(found))) return found;
    found.coeff = std::max(1.0, found.coeff * price_rise);
  }
  return std::nullopt;
}

std::int64_t PlanSearch::rounds() const {
  std::int64_t total = 0;
  for (const auto& [groups, stage] : stages_) total += stage->search.rounds();
  return total;
}

void PlanSearch::begin_with(Stage& on, const KnownProgram& known) const {
  std::vector<std::int32_t> nodes = nodes_in(program_, classes_, known.classes);
  for (const Pin& pin : program_.pins) {
    if (classes_.holder_of[pin.value] >= 0) nodes[classes_.holder_of[pin.value]] = -1;
  }
  on.search.levels().begin_with(known.messages, nodes);
}

Stage& PlanSearch::stage(const Groups& groups) {
  std::unique_ptr<Stage>& known = stages_[groups];
  if (!known) {
    known = std::make_unique<Stage>(program_, classes_, memory_, cluster_, options_, deadline_,
                                    groups);
  }
  return *known;
}

Candidate PlanSearch::descend(const Groups& groups, double coeff) {
  Stage& on = stage(groups);
  Candidate found{&on, {}, 0, 0, 0, false, {}, coeff, prices(coeff)};
  on.search.set_prices(found.prices);
  found.labels = on.search.descend();
  found.objective = on.search.result().objective;
  return found;
}

Candidate PlanSearch::at_prices(const Candidate& plan, double coeff) {
  Candidate c = plan;
  c.coeff = coeff;
  c.prices = prices(coeff);
  c.is_joint = false;
  c.stage->search.set_prices(c.prices);
  c.objective = c.stage->search.levels().objective(c.labels);
  return c;
}

void PlanSearch::sweep(Candidate& c) {
  c.stage->search.set_prices(c.prices);
  c.objective = c.stage->search.sweep(c.labels, c.objective);
}

void PlanSearch::glance(Candidate& c, AxisMask axes) {
  c.stage->search.set_prices(c.prices);
  c.objective = c.stage->search.glance(c.labels, axes, c.objective);
}

void PlanSearch::join(Candidate& c) {
  if (!options_.joint) return;
  c.stage->search.set_prices(c.prices);
  c.is_joint = c.stage->search.all_together(c.labels);
  if (c.is_joint) {
    c.lower_bound = c.stage->search.bound_of_all(c.labels);
  } else if (is_small() || c.stage->groups.size() <= most_merged_axes) {
    pairs(c);
  }
  c.objective = c.stage->search.levels().objective(c.labels);
}

void PlanSearch::pairs(Candidate& c) {
  c.stage->search.set_prices(c.prices);
  c.objective = c.stage->search.pairs(c.labels, c.objective);
}

Candidate& PlanSearch::weigh(Candidate& c) {
  c.stage->search.set_prices({});
  c.seconds = c.stage->search.levels().objective(c.labels);
  c.peak = c.stage->search.peak_of(c.labels);
  if (std::find(moments_.begin(), moments_.end(), c.peak.moment) == moments_.end()) {
    moments_.push_back(c.peak.moment);
  }
  return c;
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
  if (may_group_ && !late()) {
    for (const Groups& groups : two_groups()) {
      if (groups == single_) {
        is_single_one_of_two = true;  // a mesh has one search, and no two threads share it
      } else {
        meshes.push_back(groups);
      }
    }
  }
  for (const Groups& groups : meshes) stage(groups);
  std::vector<Candidate> tried(meshes.size());
  workers_.for_each(tried.size(),
                    [&](std::size_t i) { tried[i] = descend(meshes[i], coeff); });
  Candidate single = std::move(tried.front());
  tried.erase(tried.begin());
  if (is_single_one_of_two) tried.push_back(single);
  std::stable_sort(tried.begin(), tried.end(), by_objective);
  phases_.start("sweeps");
  const double swept_up_to = tried.empty() ? 0 : tried.front().objective * worth_a_sweep;
  const auto sweep_first = [&](std::size_t count, const auto& again) {
    workers_.for_each(std::min(tried.size(), count), [&](std::size_t i) {
      if (tried[i].objective <= swept_up_to && !late()) again(tried[i]);
    });
    std::stable_sort(tried.begin(), tried.end(), by_objective);
  };
  // What the first axis does when it knows of the second shows which meshes are worth more.
  if (!is_small()) {
    sweep_first(tried.size(), [&](Candidate& c) { glance(c, all_axes(c.stage->mesh) >> 1); });
  }
  // A plan on one axis is a plan on every mesh: axis by axis, none begins with less.
  if (tried.size() > 1 && tried.front().stage->groups.size() == 1) {
    Candidate from_one = on_mesh(tried.front(), tried[1].stage->groups);
    if (from_one.objective < tried[1].objective) tried[1] = std::move(from_one);
  }
  sweep_first(is_small() ? tried.size() : most_finalists, [&](Candidate& c) { sweep(c); });
  // Single axes are swept if nothing else can be, if there is time to be exact, or if they
  // were cheaper before.
  if (tried.empty() || is_small() ||
      tried.front().objective > single.objective * (1 + merge_tolerance)) {
    sweep(single);
  }
  if (!may_merge_ && !tried.empty()) {
    Candidate finer = on_mesh(tried.front(), single_);
    sweep(finer);
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
  if (list.empty() || is_small()) join(single);
  if (list.empty()) return {single};
  list.resize(std::min(list.size(), most_finalists));
  const double worth_up_to = list.front().objective * worth_joining;
  while (list.back().objective > worth_up_to) list.pop_back();
  std::optional<Candidate> finer;
  if (!is_small() && list.front().prices.empty()) {
    const double least = list.front().objective;
    for (std::size_t i = 0; i < list.size() && !finer; ++i) finer = split(list[i], least);
  }
  if (!finer) {
    phases_.start("joint");
    workers_.for_each(list.size(), [&](std::size_t i) {
      if (!late()) join(list[i]);
    });
  }
  if (is_small()) {
    const Candidate& best = *std::min_element(list.begin(), list.end(), by_objective);
    finer = split(best, best.objective);
  }
  if (finer) list.push_back(*std::move(finer));
  list.push_back(std::move(single));
  const auto cost = [](const Candidate& c) { return c.objective; };
  std::swap(*with_fewest_axes(list, cost, axes_tolerance()), list.front());
  return list;
}

double PlanSearch::axes_tolerance() const {
  if (is_exact()) return least_gain;
  const bool is_one_switch =
      cluster_.dims.size() == 1 && cluster_.dims.front().kind == LinkKind::switched;
  return is_one_switch ? switched_tolerance : merge_tolerance;
}

double PlanSearch::middle_of(double unfit, double fit) {
  return unfit > 0 ? std::sqrt(unfit * fit) : fit / 4;
}

void PlanSearch::add_one_axis(std::vector<Candidate>& pool, const Candidate& best) {
  const bool is_there = best.stage->groups.size() == 1 && best.coeff == 0;
  if (!may_merge_ || is_exact() || is_there) return;
  phases_.start("one axis");
  Groups all(1);
  for (int axis = 0; axis < program_.mesh.rank(); ++axis) all.front().push_back(axis);
  const double most_seconds = best.seconds * (1 + axes_tolerance());
  const auto finish = [&](Candidate c) {
    sweep(c);
    join(c);
    pool.push_back(std::move(c));
    return fits(weigh(pool.back()));
  };
  double unfit = 0;
  for (double coeff : price_ladder) {
    if (late() || (best.stage->groups.size() == 1 && coeff >= best.coeff)) return;
    Candidate c = descend(all, coeff);
    // The one level is the whole mesh, so that its bound is one on all plans that fit.
    if (c.stage->search.bound_of_all(c.labels) > most_seconds) return;
    if (finish(std::move(c))) {
      double fit = coeff;
      for (int halving = 0; fit > 0 && halving < price_halvings && !late(); ++halving) {
        const double middle = middle_of(unfit, fit);
        (finish(descend(all, middle)) ? fit : unfit) = middle;
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
  for (int halving = 0; halving < price_halvings && !late(); ++halving) {
    const double middle = middle_of(unfit, fit);
    Candidate tried = at_prices(start, middle);
    sweep(tried);
    (fits(weigh(tried)) ? fit : unfit) = middle;
    pool.push_back(std::move(tried));
  }
}

void PlanSearch::split_last(std::vector<Candidate>& pool, double unfit) {
  const Candidate* best = nullptr;
  for (const Candidate& c : pool) {
    const bool may_split = c.stage->groups.size() < most_merged_axes && fits(c);
    if (may_split && (!best || c.seconds < best->seconds)) best = &c;
  }
  if (!best) return;
  const Candidate priced = at_prices(*best, best->coeff);
  std::optional<Candidate> finer = split(priced, priced.objective);
  if (!finer) return;
  phases_.start("memory");
  const bool is_fitting = fits(weigh(*finer));
  pool.push_back(*finer);
  if (is_fitting) lower_price(pool, *finer, unfit, finer->coeff);
}

void PlanSearch::merge_alike(std::vector<Candidate>& pool, const Candidate& best) {
  if (!may_merge_ || late()) return;
  const Groups& groups = best.stage->groups;
  Groups merged = {groups.front()};
  for (std::size_t g = 1; g < groups.size(); ++g) {
    if (always_together(best, static_cast<AxisIndex>(g - 1), static_cast<AxisIndex>(g))) {
      merged.back().insert(merged.back().end(), groups[g].begin(), groups[g].end());
    } else {
      merged.push_back(groups[g]);
    }
  }
  if (merged.size() == groups.size()) return;
  phases_.start("joint");
  Candidate coarser = on_mesh(best, merged);
  sweep(coarser);
  join(coarser);
  weigh(coarser);
  pool.push_back(std::move(coarser));
}

bool PlanSearch::always_together(const Candidate& plan, AxisIndex major,
                                 AxisIndex minor) const {
  const auto in_all = [&](const std::vector<AxisList>& lists) {
    return std::all_of(lists.begin(), lists.end(), [&](const AxisList& axes) {
      const auto at = std::find(axes.begin(), axes.end(), major);
      if (at == axes.end()) return std::find(axes.begin(), axes.end(), minor) == axes.end();
      return at + 1 != axes.end() && at[1] == minor;
    });
  };
  LevelSolver& levels = plan.stage->search.levels();
  for (std::size_t h = 0; h < classes_.holders.size(); ++h) {
    const auto holder = static_cast<std::int32_t>(h);
    if (!in_all(levels.sharding(plan.labels, holder).dims)) return false;
  }
  for (std::size_t o = 0; o < classes_.ops.size(); ++o) {
    if (!in_all(levels.axes(plan.labels, static_cast<std::int32_t>(o)))) return false;
  }
  return true;
}

bool PlanSearch::by_objective(const Candidate& a, const Candidate& b) {
  return a.objective < b.objective;
}

std::optional<Candidate> PlanSearch::split(const Candidate& from, double least) {
  const Groups& groups = from.stage->groups;
  if (!options_.joint || groups.size() >= most_merged_axes) return std::nullopt;
  phases_.start("split");
  std::vector<Groups> meshes;
  std::vector<AxisMask> made;  // the two axes that one was split into
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t at = 1; at < groups[g].size(); ++at) {
      Groups finer = groups;
      const auto middle = finer[g].begin() + static_cast<std::ptrdiff_t>(at);
      const std::vector<int> minor(middle, finer[g].end());
      finer[g].erase(middle, finer[g].end());
      finer.insert(finer.begin() + static_cast<std::ptrdiff_t>(g) + 1, minor);
      stage(finer);
      meshes.push_back(std::move(finer));
      made.push_back(3u << g);
    }
  }
  std::vector<Candidate> tried(meshes.size(), from);
  workers_.for_each(tried.size(), [&](std::size_t i) {
    if (late()) return;
    tried[i] = on_mesh(from, meshes[i]);
    if (is_small()) {
      sweep(tried[i]);
      if (!late()) join(tried[i]);
    } else {
      glance(tried[i], made[i]);
      // What the other axes could do alone, they have done.
      if (tried[i].objective < from.objective * (1 - worth_deciding_again)) {
        glance(tried[i], all_axes(tried[i].stage->mesh) & ~made[i]);
      }
    }
  });
  const auto best = std::min_element(tried.begin(), tried.end(), by_objective);
  const auto pays = [&](double objective) {
    return best->objective * (1 + axes_tolerance()) < objective;
  };
  if (best == tried.end() || late() || !pays(from.objective)) return std::nullopt;
  while (!is_small() && !late()) {
    const double before = best->objective;
    sweep(*best);
    pairs(*best);
    if (!(best->objective < before * (1 - worth_deciding_again))) break;
  }
  if (!pays(least)) return std::nullopt;
  return std::move(*best);
}

Candidate PlanSearch::on_mesh(const Candidate& plan, const Groups& groups) {
  Candidate other = plan;
  other.stage = &stage(groups);
  other.labels = carried_over(plan, *other.stage);
  other.is_joint = false;
  other.stage->search.set_prices(other.prices);
  other.objective = other.stage->search.levels().objective(other.labels);
  return other;
}

Labels PlanSearch::carried_over(const Candidate& from, Stage& to) const {
  // Groups of `to` that begin in each group of `from`.
  std::vector<AxisList> begun;
  for (const std::vector<int>& group : from.stage->groups) {
    begun.emplace_back();
    for (std::size_t g = 0; g < to.groups.size(); ++g) {
      if (std::find(group.begin(), group.end(), to.groups[g].front()) != group.end()) {
        begun.back().push_back(static_cast<AxisIndex>(g));
      }
    }
  }
  const auto map = [&](const std::vector<AxisList>& lists) {
    std::vector<AxisList> mapped;
    for (const AxisList& axes : lists) {
      AxisList& list = mapped.emplace_back();
      for (AxisIndex axis : axes) {
        list.append(begun[axis].begin(), begun[axis].end());
      }
    }
    return mapped;
  };
  LevelSolver& levels = from.stage->search.levels();
  std::vector<Sharding> holders;
  for (std::size_t h = 0; h < classes_.holders.size(); ++h) {
    holders.push_back({map(levels.sharding(from.labels, static_cast<std::int32_t>(h)).dims)});
  }
  std::vector<FactorAxes> ops;
  for (std::size_t o = 0; o < classes_.ops.size(); ++o) {
    ops.push_back(map(levels.axes(from.labels, static_cast<std::int32_t>(o))));
  }
  return to.search.levels().labels_of(holders, ops);
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
  while (rung < last && !late()) {
    const std::size_t middle = (rung + last) / 2;
    quick.push_back(descend(single_, price_ladder[middle]));
    if (fits(weigh(quick.back()))) {
      last = middle;
    } else {
      rung = middle + 1;
    }
  }
  return last;
}

Candidate PlanSearch::cheapest_that_fits() {
  std::vector<Candidate> pool, quick;
  const bool asks_single = may_merge_ && !is_small();
  const std::size_t last = std::size(price_ladder) - 1;
  std::size_t rung = 0;
  if (asks_single && is_tight()) {
    phases_.start("levels");
    quick.push_back(descend(single_, price_ladder[0]));
    if (!fits(weigh(quick.back()))) rung = first_that_fits(1, quick);
  }
  double unfit = rung > 0 ? price_ladder[rung - 1] : 0, fit = -1;
  while (true) {
    const double coeff = price_ladder[rung];
    std::vector<Candidate> list = shortlist(coeff);
    phases_.start("memory");
    pool.push_back(list.front());
    if (fits(weigh(pool.back())) || is_small() || rung == last || late()) {
      if (fits(pool.back())) fit = coeff;
      for (Candidate& best : best_of(std::move(list))) {
        phases_.start("memory");
        pool.push_back(std::move(best));
        if (fits(weigh(pool.back()))) fit = coeff;
      }
      if (fit >= 0) break;
    }
    if (rung == last) break;
    // Without time for all prices, the highest one is the likeliest to fit.
    rung = late() ? last : rung == 0 && asks_single ? first_that_fits(1, quick) : rung + 1;
    unfit = price_ladder[rung - 1];
  }
  // Axes that are used unlike may fit where merged ones do not.
  if (fit < 0) pool.insert(pool.end(), quick.begin(), quick.end());
  if (fit > 0) {
    phases_.start("prices");
    for (int halving = 0; is_small() && halving < price_halvings && !late(); ++halving) {
      const double middle = middle_of(unfit, fit);
      pool.push_back(best_of(shortlist(middle)).front());
      phases_.start("memory");
      (fits(weigh(pool.back())) ? fit : unfit) = middle;
    }
    if (!is_small()) {
      lower_price(pool, fastest_that_fits(pool, 0, axes_tolerance()), unfit, fit);
      split_last(pool, unfit);
    }
  }
  add_one_axis(pool, fastest_that_fits(pool, 0, axes_tolerance()));
  merge_alike(pool, fastest_that_fits(pool, 0, axes_tolerance()));
  return fastest_that_fits(pool, 0, axes_tolerance());
}

Candidate PlanSearch::of_coefficient(double coeff) {
  std::vector<Candidate> pool;
  for (double step : price_ladder) {
    pool.push_back(best_of(shortlist(step)).front());
    phases_.start("memory");
    weigh(pool.back());
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
    return fits(c) ? c.seconds + price * c.peak.bytes
                   : std::numeric_limits<double>::infinity();
  };
  Candidate* best = with_fewest_axes(pool, cost, tolerance);
  if (!fits(*best)) {
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

Prices PlanSearch::prices(double coeff) const {
  Prices result;
  if (coeff == 0) return result;
  const double price = coeff / cluster_.chip.memory_bandwidth;
  for (std::int32_t moment : moments_) {
    result.emplace_back(moment, price / static_cast<double>(moments_.size()));
  }
  return result;
}

bool PlanSearch::is_small() const { return classes_.ops.size() <= small_program; }

bool PlanSearch::is_exact() const { return classes_.ops.size() <= exact_program; }

}  // namespace autoshard::planning
