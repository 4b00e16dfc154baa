#include "planning/recursive_programming.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <set>

#include "planning/workers.h"

namespace autoshard::planning {
namespace {

using Clock = std::chrono::steady_clock;

/// Two ops or values that look alike this many steps around share one choice.
constexpr int fold_rounds = 6;
/// Programs of fewer ops are not folded.
constexpr std::size_t fold_from_ops = 400;
/// Most options of one op for axes to be decided together, and the same in programs of at most
/// `tiny_program` classes of ops.
constexpr double most_joint_options = 200;
constexpr double most_tiny_options = 2000;
constexpr std::size_t tiny_program = 40;
constexpr Rounds first_rounds{8, 12, 0};
/// All meshes have one sweep of few rounds, which shows which are worth more; what is swept in
/// full needs more than that to leave a bad optimum.
constexpr Rounds glance_rounds{10, 10, 0};
constexpr Rounds sweep_rounds{10, 60, 150'000};
constexpr Rounds joint_rounds{10, 100, 400'000, 2e7};
/// Single axes, for a bound on a plan that is made again.
constexpr Rounds bound_rounds{10, 30, 150'000};
/// Of those that are, up to so many ops are looked at again without folding, if that halved
/// them.
constexpr std::size_t unfold_up_to_ops = 12'000;
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
/// Seconds; what is longer is no limit, and more than clocks can count.
constexpr double longest_time_limit = 1e9;
/// An improvement smaller than this part of the objective ends the sweeps.
constexpr double least_gain = 1e-6;
/// An axis is decided again if the others have saved more than this part since: levels are not
/// solved more exactly than that.
constexpr double worth_deciding_again = 1e-4;

AxisMask all_axes(const Mesh& mesh) {
  return static_cast<AxisMask>((1ull << mesh.rank()) - 1);
}

/// Seconds spent under each name.
class Phases {
 public:
  void start(const std::string& name) {
    stop();
    name_ = name;
    begin_ = Clock::now();
  }
  void stop() {
    if (name_.empty()) return;
    const double spent = std::chrono::duration<double>(Clock::now() - begin_).count();
    const auto known = std::find_if(list_.begin(), list_.end(),
                                    [&](const auto& p) { return p.first == name_; });
    if (known == list_.end()) {
      list_.emplace_back(name_, spent);
    } else {
      known->second += spent;
    }
    name_.clear();
  }
  std::vector<std::pair<std::string, double>> list() const { return list_; }

 private:
  std::vector<std::pair<std::string, double>> list_;
  std::string name_;
  Clock::time_point begin_;
};

/// The search on one mesh.
class Search {
 public:
  Search(const Program& program, const Mesh& mesh, const Classes& classes,
         const Storage& storage, const Cluster& cluster, const RecursiveOptions& options,
         Clock::time_point deadline)
      : program_(program),
        mesh_(mesh),
        classes_(classes),
        storage_(storage),
        cluster_(cluster),
        options_(options),
        deadline_(deadline),
        orders_(mesh, program.pins),
        costs_(program, mesh, classes, storage, cluster),
        levels_(program, mesh, classes, costs_, orders_),
        all_(all_axes(mesh)) {}

  LevelSolver& levels() { return levels_; }
  const Costs& costs() const { return costs_; }
  std::int64_t rounds() const { return levels_.rounds(); }
  void set_prices(const Prices& prices) { costs_.set_prices(prices); }

  /// One level an axis, the first axis first.
  Labels descend() {
    Labels labels = levels_.unsplit();
    AxisMask decided = 0;
    for (int axis = 0; axis < mesh_.rank(); ++axis) {
      result_ = levels_.solve(labels, decided, 1u << axis, first_rounds, options_.seed, false);
      decided |= 1u << axis;
    }
    return labels;
  }

  /// Every level again until nothing improves. `reached` is the objective of `labels`; returns
  /// the new one.
  double sweep(Labels& labels, double reached) {
    std::vector<double> decided_at(static_cast<std::size_t>(mesh_.rank()));
    for (int sweep = 0; sweep < options_.sweeps; ++sweep) {
      const double before = reached;
      for (int axis = 0; axis < mesh_.rank(); ++axis) {
        const bool is_new =
            sweep == 0 || reached < decided_at[axis] * (1 - worth_deciding_again);
        if (!is_new) continue;
        decided_at[axis] = reached = decide(labels, 1u << axis, sweep_rounds, reached);
      }
      if (!(reached < before * (1 - least_gain))) break;
    }
    return reached;
  }

  /// Each of some axes again, in few rounds.
  double glance(Labels& labels, AxisMask axes, double reached) {
    for (int axis = 0; axis < mesh_.rank() && options_.sweeps > 0; ++axis) {
      if ((axes >> axis) & 1u) reached = decide(labels, 1u << axis, glance_rounds, reached);
    }
    return reached;
  }

  /// Every two axes together, where an op has few enough options.
  double pairs(Labels& labels, double reached) {
    const int rank = mesh_.rank();
    for (int a = 0; a < rank; ++a) {
      for (int b = a + 1; b < rank; ++b) {
        const AxisMask free = (1u << a) | (1u << b);
        if (levels_.most_options(free) > joint_options()) continue;
        reached = decide(labels, free, sweep_rounds, reached);
      }
    }
    return reached;
  }

  /// All axes together, if that is small enough.
  bool all_together(Labels& labels) {
    if (levels_.most_options(all_) > joint_options() || is_late()) return false;
    result_ = levels_.solve(labels, 0, all_, joint_rounds, options_.seed, true);
    return true;
  }

  /// Less than the seconds of any plan that differs from `labels` in one axis.
  double bound_of_axes(const Labels& labels, const Rounds& rounds) {
    costs_.set_prices({});
    double least = levels_.objective(labels);
    for (int axis = 0; axis < mesh_.rank(); ++axis) {
      if (is_late()) return 0;
      Labels tried = labels;
      const LevelResult level =
          levels_.solve(tried, all_ & ~(1u << axis), 1u << axis, rounds, options_.seed, true);
      least = std::min(least, level.lower_bound);
    }
    return least - costs_.most_beside_seconds(options_.memory_limit);
  }

  /// Less than the seconds of any plan on the mesh that keeps within the memory limit, after
  /// all axes were decided together as `labels`. Where memory has a price, what ops take at
  /// least may say more than what is left of the network's bound without it.
  double bound_of_all(const Labels& labels) {
    return std::max(result_.lower_bound - costs_.most_beside_seconds(options_.memory_limit),
                    levels_.least_of_ops(labels, all_));
  }

  const LevelResult& result() const { return result_; }
  bool is_late() const { return Clock::now() >= deadline_; }

  /// Bytes of the plan at its worst moment.
  Peak peak_of(const Labels& labels) {
    return planning::peak_of(program_, mesh_, classes_, storage_, cluster_, levels_, labels,
                             num_shards_of(labels));
  }

 private:
  double joint_options() const {
    return classes_.ops.size() <= tiny_program ? most_tiny_options : most_joint_options;
  }

  double decide(Labels& labels, AxisMask free, const Rounds& rounds, double reached) {
    if (is_late()) return reached;
    Labels tried = labels;
    const LevelResult result =
        levels_.solve(tried, all_ & ~free, free, rounds, options_.seed, true);
    if (!(result.objective < reached)) return reached;
    labels = std::move(tried);
    result_ = result;
    return result.objective;
  }

  std::vector<double> num_shards_of(const Labels& labels) {
    std::vector<double> of_holder(classes_.holders.size());
    for (std::size_t h = 0; h < of_holder.size(); ++h) {
      of_holder[h] = static_cast<double>(
          num_shards(levels_.sharding(labels, static_cast<std::int32_t>(h)), mesh_));
    }
    std::vector<double> shards(program_.values.size(), 1);
    for (std::size_t v = 0; v < shards.size(); ++v) {
      if (classes_.holder_of[v] >= 0) shards[v] = of_holder[classes_.holder_of[v]];
    }
    return shards;
  }

  const Program& program_;
  const Mesh& mesh_;
  const Classes& classes_;
  const Storage& storage_;
  const Cluster& cluster_;
  const RecursiveOptions& options_;
  const Clock::time_point deadline_;
  AxisOrders orders_;
  SecondsCosts costs_;
  LevelSolver levels_;
  AxisMask all_;
  LevelResult result_;
};

/// A mesh whose axes are groups of another's, and the search on it.
struct Stage {
  Stage(const Program& whole, const Classes& classes, const Storage& storage,
        const Cluster& links, const RecursiveOptions& options, Clock::time_point deadline,
        std::vector<std::vector<int>> axis_groups)
      : groups(std::move(axis_groups)),
        mesh(merged(whole.mesh, groups)),
        cluster(merged(links, groups)),
        search(whole, mesh, classes, storage, cluster, options, deadline) {}

  static Mesh merged(const Mesh& whole, const std::vector<std::vector<int>>& groups) {
    Mesh mesh{{}, whole.has_all_to_all};
    for (const std::vector<int>& group : groups) {
      std::int64_t size = 1;
      for (int axis : group) size *= whole.axis_sizes[axis];
      mesh.axis_sizes.push_back(size);
    }
    return mesh;
  }

  static Cluster merged(const Cluster& links, const std::vector<std::vector<int>>& groups) {
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

  std::vector<std::vector<int>> groups;
  Mesh mesh;
  Cluster cluster;
  Search search;
};

/// Pins that ask for certain axes or numbers of blocks, which a coarser mesh may not have.
bool pins_need_axes(const Program& program) {
  return std::any_of(program.pins.begin(), program.pins.end(), [](const Pin& pin) {
    return !pin.replicated.empty() ||
           std::any_of(pin.dims.begin(), pin.dims.end(), [](const DimPin& dim) {
             return !dim.axes.empty() || (dim.num_shards && *dim.num_shards > 1);
           });
  });
}

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
  PlanSearch(const Program& program, const Classes& classes, const Storage& storage,
             const Cluster& cluster, const RecursiveOptions& options,
             Clock::time_point deadline, Phases& phases)
      : program_(program),
        classes_(classes),
        storage_(storage),
        cluster_(cluster),
        options_(options),
        deadline_(deadline),
        phases_(phases),
        may_merge_(options.merge_axes && program.mesh.rank() > 1 && !pins_need_axes(program)),
        // Also on a mesh that stays as it is, plans on coarser ones are good starts.
        may_group_(may_merge_ || (program.mesh.rank() > 2 && !pins_need_axes(program))) {
    for (int axis = 0; axis < program.mesh.rank(); ++axis) single_.push_back({axis});
  }

  /// The plan that the options ask for. Throws `DoesNotFit`.
  Candidate run() {
    if (options_.mem_coeff) return of_coefficient(*options_.mem_coeff);
    return cheapest_that_fits();
  }

  /// A plan of the same program with other pins, decided again one axis at a time on its own
  /// mesh, at higher prices of memory if need be; nothing if it does not fit. Throws
  /// `Contradiction`.
  std::optional<Candidate> from(const Plan& previous, const KnownProgram* known,
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

  /// Rounds of message passing so far, on all meshes.
  std::int64_t rounds() const {
    std::int64_t total = 0;
    for (const auto& [groups, stage] : stages_) total += stage->search.rounds();
    return total;
  }

 private:
  /// Message passing begins where it ended for the same program with other pins, but for what
  /// is pinned.
  void begin_with(Stage& on, const KnownProgram& known) const {
    std::vector<std::int32_t> nodes = nodes_in(program_, classes_, known.classes);
    for (const Pin& pin : program_.pins) {
      if (classes_.holder_of[pin.value] >= 0) nodes[classes_.holder_of[pin.value]] = -1;
    }
    on.search.levels().begin_with(known.messages, nodes);
  }

  bool fits(const Candidate& c) const { return c.peak.bytes <= options_.memory_limit; }

  Stage& stage(const Groups& groups) {
    std::unique_ptr<Stage>& known = stages_[groups];
    if (!known) {
      known = std::make_unique<Stage>(program_, classes_, storage_, cluster_, options_,
                                      deadline_, groups);
    }
    return *known;
  }

  /// Axis by axis on one mesh.
  Candidate descend(const Groups& groups, double coeff) {
    Stage& on = stage(groups);
    Candidate found{&on, {}, 0, 0, 0, false, {}, coeff, prices(coeff)};
    on.search.set_prices(found.prices);
    found.labels = on.search.descend();
    found.objective = on.search.result().objective;
    return found;
  }

  /// The same plan at the prices of a coefficient.
  Candidate at_prices(const Candidate& plan, double coeff) {
    Candidate c = plan;
    c.coeff = coeff;
    c.prices = prices(coeff);
    c.is_joint = false;
    c.stage->search.set_prices(c.prices);
    c.objective = c.stage->search.levels().objective(c.labels);
    return c;
  }

  void sweep(Candidate& c) {
    c.stage->search.set_prices(c.prices);
    c.objective = c.stage->search.sweep(c.labels, c.objective);
  }

  /// Each of some axes again, in few rounds.
  void glance(Candidate& c, AxisMask axes) {
    c.stage->search.set_prices(c.prices);
    c.objective = c.stage->search.glance(c.labels, axes, c.objective);
  }

  void join(Candidate& c) {
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

  void pairs(Candidate& c) {
    c.stage->search.set_prices(c.prices);
    c.objective = c.stage->search.pairs(c.labels, c.objective);
  }

  /// Takes a candidate's peak and its seconds without prices.
  Candidate& weigh(Candidate& c) {
    c.stage->search.set_prices({});
    c.seconds = c.stage->search.levels().objective(c.labels);
    c.peak = c.stage->search.peak_of(c.labels);
    if (std::find(moments_.begin(), moments_.end(), c.peak.moment) == moments_.end()) {
      moments_.push_back(c.peak.moment);
    }
    return c;
  }

  bool is_small() const { return classes_.ops.size() <= small_program; }
  bool is_exact() const { return classes_.ops.size() <= exact_program; }

  /// Whether memory may decide: what the program keeps takes a good part of it even if every
  /// value is cut by all devices.
  bool is_tight() const {
    double devices = 1;
    for (std::int64_t size : program_.mesh.axis_sizes) devices *= static_cast<double>(size);
    const std::vector<double> shards(program_.values.size(), devices);
    return peak(storage_, shards, {}).bytes > tight_share * options_.memory_limit;
  }

  /// Plans at one price, swept on the meshes that suit it, the cheapest first; the last one is
  /// on single axes.
  std::vector<Candidate> shortlist(double coeff) {
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
      sweep_first(tried.size(),
                  [&](Candidate& c) { glance(c, all_axes(c.stage->mesh) >> 1); });
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

  /// The most promising of a shortlist, the one to take first. An axis is split where that
  /// pays without prices: at a price that may still change, memory beyond the limit counts.
  /// Else, and always in small programs, all axes are decided together.
  std::vector<Candidate> best_of(std::vector<Candidate> list) {
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

  /// Few named axes that cost hardly more are better, but not in programs so small that their
  /// plan is to be the fastest.
  double axes_tolerance() const {
    if (is_exact()) return least_gain;
    const bool is_one_switch =
        cluster_.dims.size() == 1 && cluster_.dims.front().kind == LinkKind::switched;
    return is_one_switch ? switched_tolerance : merge_tolerance;
  }

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
  static double middle_of(double unfit, double fit) {
    return unfit > 0 ? std::sqrt(unfit * fit) : fit / 4;
  }

  /// All devices as one axis, where that may be taken, at its own price of memory: that of
  /// other meshes may be too high.
  void add_one_axis(std::vector<Candidate>& pool, const Candidate& best) {
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

  /// A plan swept again at prices between one that fits and one that does not.
  void lower_price(std::vector<Candidate>& pool, const Candidate& start, double unfit,
                   double fit) {
    phases_.start("prices");
    for (int halving = 0; halving < price_halvings && !late(); ++halving) {
      const double middle = middle_of(unfit, fit);
      Candidate tried = at_prices(start, middle);
      sweep(tried);
      (fits(weigh(tried)) ? fit : unfit) = middle;
      pool.push_back(std::move(tried));
    }
  }

  /// Splits an axis of the fastest plan on few axes that fits, at its price. What memory that
  /// saves is worth nothing in itself, but a lower price may do then.
  void split_last(std::vector<Candidate>& pool, double unfit) {
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

  /// Makes one axis of neighbours that the plan always uses together, and goes on from there.
  void merge_alike(std::vector<Candidate>& pool, const Candidate& best) {
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

  /// Whether whatever is cut along one of two axes is cut along the other next.
  bool always_together(const Candidate& plan, AxisIndex major, AxisIndex minor) const {
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

  static bool by_objective(const Candidate& a, const Candidate& b) {
    return a.objective < b.objective;
  }

  /// The best of the meshes that split an axis of a candidate's mesh in two, each starting
  /// from its plan; nothing if it saves too little for one axis more, or is not as far below
  /// `least` in the end.
  std::optional<Candidate> split(const Candidate& from, double least) {
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

  /// The same plan on a mesh that splits axes of its own, or merges those it uses together.
  Candidate on_mesh(const Candidate& plan, const Groups& groups) {
    Candidate other = plan;
    other.stage = &stage(groups);
    other.labels = carried_over(plan, *other.stage);
    other.is_joint = false;
    other.stage->search.set_prices(other.prices);
    other.objective = other.stage->search.levels().objective(other.labels);
    return other;
  }

  Labels carried_over(const Candidate& from, Stage& to) const {
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
      holders.push_back(
          {map(levels.sharding(from.labels, static_cast<std::int32_t>(h)).dims)});
    }
    std::vector<FactorAxes> ops;
    for (std::size_t o = 0; o < classes_.ops.size(); ++o) {
      ops.push_back(map(levels.axes(from.labels, static_cast<std::int32_t>(o))));
    }
    return to.search.levels().labels_of(holders, ops);
  }

  /// All axes as one, and every way to make two of them.
  std::vector<Groups> two_groups() const {
    std::vector<Groups> result;
    const int rank = program_.mesh.rank();
    for (int first = rank; first > 0; --first) {
      Groups groups(first < rank ? 2 : 1);
      for (int axis = 0; axis < rank; ++axis) groups[axis < first ? 0 : 1].push_back(axis);
      result.push_back(std::move(groups));
    }
    return result;
  }

  /// The first of the prices from `rung` on at which single axes fit, found by halving: what
  /// fits at one price is taken to fit at all higher ones, and the last one is not asked. The
  /// plans go to `quick`.
  std::size_t first_that_fits(std::size_t rung, std::vector<Candidate>& quick) {
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

  /// Rising prices until a plan fits, then back towards the last one that did not.
  Candidate cheapest_that_fits() {
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

  /// The best of a fixed set of plans: what it depends on is the program, not the coefficient,
  /// and of two coefficients the larger one never chooses the plan with the larger peak.
  Candidate of_coefficient(double coeff) {
    std::vector<Candidate> pool;
    for (double step : price_ladder) {
      pool.push_back(best_of(shortlist(step)).front());
      phases_.start("memory");
      weigh(pool.back());
    }
    return fastest_that_fits(pool, coeff / cluster_.chip.memory_bandwidth, 0);
  }

  /// Of the plans that cost up to `tolerance` more than the cheapest, one on the fewest axes.
  /// Throws `DoesNotFit`.
  Candidate fastest_that_fits(std::vector<Candidate>& pool, double price,
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

  /// The price of a coefficient, spread over the moments at which plans had their peaks.
  Prices prices(double coeff) const {
    Prices result;
    if (coeff == 0) return result;
    const double price = coeff / cluster_.chip.memory_bandwidth;
    for (std::int32_t moment : moments_) {
      result.emplace_back(moment, price / static_cast<double>(moments_.size()));
    }
    return result;
  }

  bool late() const { return Clock::now() >= deadline_; }

  const Program& program_;
  const Classes& classes_;
  const Storage& storage_;
  const Cluster& cluster_;
  const RecursiveOptions& options_;
  const Clock::time_point deadline_;
  Phases& phases_;
  const bool may_merge_, may_group_;
  Groups single_;
  Workers workers_{most_threads};
  std::map<Groups, std::unique_ptr<Stage>> stages_;
  std::vector<std::int32_t> moments_;
};

ClassOptions class_options(const Program& program, bool fold) {
  return {fold && program.ops.size() >= fold_from_ops ? fold_rounds : -1,
          search_copy_distance(program)};
}

Clock::time_point deadline_of(const RecursiveOptions& options) {
  if (!(options.time_limit < longest_time_limit)) return Clock::time_point::max();
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(options.time_limit));
}

/// What a candidate means, with every term of its cost. `rounds` are for its bound where that
/// is by single axes.
RecursivePlan written_out(const Program& program, const Classes& classes,
                          const std::shared_ptr<const Storage>& storage,
                          const RecursiveOptions& options, const Candidate& best,
                          const Rounds& rounds, Phases& phases) {
  phases.start("bound");
  Search& search = best.stage->search;
  RecursivePlan result;
  if (best.is_joint) result.lower_bound_seconds = best.lower_bound;
  // One axis is all axes.
  if (!best.is_joint || best.stage->mesh.rank() == 1) {
    result.lower_bound_seconds =
        std::max(result.lower_bound_seconds, search.bound_of_axes(best.labels, rounds));
  }
  phases.start("plan");
  result.mem_coeff = options.mem_coeff.value_or(best.coeff);
  result.op_classes = static_cast<std::int64_t>(classes.ops.size());
  result.mesh = best.stage->mesh;
  result.axis_groups = best.stage->groups;
  result.bound_is_joint = best.is_joint || result.mesh.rank() == 1;
  result.plan = plan_of(program, result.mesh, classes, search.levels(), best.labels);
  verify(program, result.mesh, result.plan);
  result.costs = costs_of(program, result.mesh, classes, *storage, best.stage->cluster,
                          search.levels(), best.labels, result.plan);
  result.known = std::make_shared<const KnownProgram>(
      KnownProgram{storage, classes, search.levels().messages_of_axes()});
  for (const CostedMove& move : result.costs.moves) {
    result.plan.redistributions.push_back(move.move);
  }
  result.plan.redistributed_bytes = result.costs.sent_bytes;
  result.plan.objective = best.seconds;
  result.plan.lower_bound = result.lower_bound_seconds;
  result.plan.levels = best.is_joint ? 1 : result.mesh.rank();
  return result;
}

}  // namespace

solver::Problem joint_network(const Program& program, const Cluster& cluster) {
  check(program);
  check(cluster, program.mesh);
  const Storage storage(program, cluster.chip.fusing);
  const Classes classes = classes_of(program, &storage, class_options(program, false));
  const SecondsCosts costs(program, program.mesh, classes, storage, cluster);
  const AxisOrders orders(program.mesh, program.pins);
  LevelSolver levels(program, program.mesh, classes, costs, orders);
  return levels.network(levels.unsplit(), 0, all_axes(program.mesh));
}

namespace {

/// Equal layers cut unlike, where that pays: every axis again, nothing folded, from `folded`.
/// Nothing if it does not.
std::optional<RecursivePlan> unfolded(const Program& program,
                                      const std::shared_ptr<const Storage>& storage,
                                      const RecursiveOptions& options,
                                      Clock::time_point deadline, const Candidate& best,
                                      const RecursivePlan& folded, Phases& phases) {
  phases.start("unfolding");
  Program on_mesh = program;
  on_mesh.mesh = folded.mesh;
  const Classes classes = classes_of(on_mesh, storage.get(), class_options(program, false));
  PlanSearch plans(on_mesh, classes, *storage, best.stage->cluster, options, deadline, phases);
  std::optional<Candidate> found;
  try {
    found = plans.from(folded.plan, nullptr, best.coeff);
  } catch (const Contradiction&) {
    return std::nullopt;  // one axis at a time may not get where all together did
  }
  if (!found || !(found->seconds < best.seconds * (1 - least_gain))) return std::nullopt;
  RecursivePlan result =
      written_out(on_mesh, classes, storage, options, *found, sweep_rounds, phases);
  result.rounds = plans.rounds();
  result.axis_groups = folded.axis_groups;
  return result;
}

}  // namespace

RecursivePlan recursive_programming(const Program& program, const Cluster& cluster,
                                    const RecursiveOptions& options) {
  check(program);
  check(cluster, program.mesh);
  const Clock::time_point deadline = deadline_of(options);
  Phases phases;
  phases.start("storage");
  const auto storage = std::make_shared<const Storage>(program, cluster.chip.fusing);
  phases.start("folding");
  const Classes classes =
      classes_of(program, storage.get(), class_options(program, options.fold));
  PlanSearch plans(program, classes, *storage, cluster, options, deadline, phases);
  const Candidate best = plans.run();
  RecursivePlan result =
      written_out(program, classes, storage, options, best, sweep_rounds, phases);
  result.rounds = plans.rounds();
  const std::size_t num_ops = program.ops.size();
  if (options.fold && options.sweeps > 0 && num_ops >= fold_from_ops &&
      num_ops <= unfold_up_to_ops && 2 * classes.ops.size() < num_ops) {
    if (auto better = unfolded(program, storage, options, deadline, best, result, phases)) {
      result = std::move(*better);
    }
  }
  phases.stop();
  result.phases = phases.list();
  return result;
}

RecursivePlan replan(const Program& program, const Cluster& cluster, const Plan& previous,
                     const KnownProgram& known, double mem_coeff,
                     const RecursiveOptions& options) {
  check(program);
  check(cluster, program.mesh);
  Phases phases;
  phases.start("folding");
  const Classes classes =
      classes_of(program, known.storage.get(), class_options(program, options.fold));
  phases.start("sweeps");
  PlanSearch plans(program, classes, *known.storage, cluster, options, deadline_of(options),
                   phases);
  std::optional<Candidate> best;
  try {
    best = plans.from(previous, &known, mem_coeff);
  } catch (const Contradiction&) {
    // One axis at a time may not get where the whole search does; it says what contradicts.
  }
  if (!best) {
    RecursiveOptions again = options;
    again.merge_axes = false;
    return recursive_programming(program, cluster, again);
  }
  RecursivePlan result =
      written_out(program, classes, known.storage, options, *best, bound_rounds, phases);
  result.rounds = plans.rounds();
  phases.stop();
  result.phases = phases.list();
  return result;
}

}  // namespace autoshard::planning
