#include "planning/plan_maker.h"

#include <algorithm>
#include <utility>

namespace autoshard::planning {
namespace {

/// As `merge_tolerance`, where one switch connects all devices, so that more axes use no other
/// links: the model does not see what they take, such as gathers in two steps that write a
/// copy between them and recomputed values in more than one layout.
constexpr double switched_tolerance = 0.015;
/// Programs of at most so many classes of ops are searched on all meshes to the end ...
constexpr std::size_t small_program = 300;
/// ... those of up to so many decide both axes of meshes of two together first ...
constexpr std::size_t medium_program = 500;
/// ... and those of at most so many take the fastest plan, on however many axes.
constexpr std::size_t exact_program = 150;
constexpr unsigned most_threads = 4;

}  // namespace

PlanMaker::PlanMaker(const SearchTask& task) : task_(task), workers_(most_threads) {}

std::int64_t PlanMaker::rounds() const {
  std::int64_t total = 0;
  for (const auto& [groups, stage] : stages_) total += stage->search.rounds();
  return total;
}

void PlanMaker::begin_with(Stage& on, const KnownProgram& known) const {
  std::vector<std::int32_t> nodes = nodes_in(task_.program, task_.classes, known.classes);
  for (const Pin& pin : task_.program.pins) {
    if (task_.classes.class_of_value[pin.value] >= 0)
      nodes[task_.classes.class_of_value[pin.value]] = -1;
  }
  on.search.levels().begin_with(known.messages, nodes);
}

Stage& PlanMaker::stage(const Groups& groups) {
  std::unique_ptr<Stage>& known = stages_[groups];
  if (!known) {
    known = std::make_unique<Stage>(task_, groups);
  }
  return *known;
}

Candidate PlanMaker::greedy_by_axis(const Groups& groups, double coeff) {
  Stage& on = stage(groups);
  Candidate found{&on, {}, 0, 0, 0, false, {}, coeff, prices(coeff)};
  found.assignment = on.search.greedy_by_axis(found.prices);
  found.objective = on.search.result().objective;
  return found;
}

Candidate PlanMaker::at_prices(const Candidate& plan, double coeff) {
  Candidate c = plan;
  c.coeff = coeff;
  c.prices = prices(coeff);
  c.is_joint = false;
  c.stage->search.set_prices(c.prices);
  c.objective = c.stage->search.levels().objective(c.assignment);
  return c;
}

void PlanMaker::sweep(Candidate& c, bool may_skip) {
  c.stage->search.set_prices(c.prices);
  c.objective = c.stage->search.sweep(c.assignment, c.objective, may_skip);
}

void PlanMaker::polish(Candidate& c) {
  c.stage->search.set_prices(c.prices);
  c.objective = c.stage->search.sweep(c.assignment, c.objective, false, mesh_polish_rounds);
}

void PlanMaker::refine_axes(Candidate& c, AxisMask axes) {
  c.stage->search.set_prices(c.prices);
  c.objective = c.stage->search.refine_axes(c.assignment, axes, c.objective);
}

void PlanMaker::refine_together(Candidate& c) {
  if (!task_.options.joint) return;
  c.stage->search.set_prices(c.prices);
  c.objective = c.stage->search.refine_together(c.assignment, c.objective);
}

void PlanMaker::join(Candidate& c) {
  if (!task_.options.joint) return;
  c.stage->search.set_prices(c.prices);
  c.is_joint = c.stage->search.all_together(c.assignment);
  if (c.is_joint) {
    c.lower_bound = c.stage->search.bound_of_all(c.assignment);
  } else if (is_small() || c.stage->groups.size() <= most_merged_axes) {
    pairs(c);
  }
  c.objective = c.stage->search.levels().objective(c.assignment);
}

void PlanMaker::pairs(Candidate& c) {
  c.stage->search.set_prices(c.prices);
  c.objective = c.stage->search.pairs(c.assignment, c.objective);
}

Candidate& PlanMaker::evaluate(Candidate& c) {
  c.stage->search.set_free(c.prices);
  c.seconds = c.stage->search.levels().objective(c.assignment);
  c.peak = c.stage->search.peak_of(c.assignment);
  if (std::find(peak_points_.begin(), peak_points_.end(), c.peak.point) ==
      peak_points_.end()) {
    peak_points_.push_back(c.peak.point);
  }
  task_.watch.found(c.seconds, fits(c), c.stage->mesh.axis_sizes);
  return c;
}

Candidate PlanMaker::on_mesh(const Candidate& plan, const Groups& groups) {
  Candidate other = plan;
  other.stage = &stage(groups);
  other.assignment = carried_over(plan, *other.stage);
  other.is_joint = false;
  other.stage->search.set_prices(other.prices);
  other.objective = other.stage->search.levels().objective(other.assignment);
  return other;
}

InternedAssignment PlanMaker::carried_over(const Candidate& from, Stage& to) const {
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
  Assignment carried = from.stage->search.levels().resolved(from.assignment);
  for (Sharding& sharding : carried.shardings) sharding.dims = map(sharding.dims);
  for (FactorAxes& axes : carried.ops) axes = map(axes);
  return to.search.levels().interned(carried);
}

std::optional<Candidate> PlanMaker::split(const Candidate& from, double least) {
  const Groups& groups = from.stage->groups;
  if (!task_.options.joint || groups.size() >= most_merged_axes) return std::nullopt;
  task_.phases.start("split");
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
    if (is_late()) return;
    tried[i] = on_mesh(from, meshes[i]);
    if (is_small()) {
      sweep(tried[i]);
      if (!is_late()) join(tried[i]);
    } else {
      refine_axes(tried[i], made[i]);
      // What the other axes could do alone, they have done.
      if (tried[i].objective < from.objective * (1 - worth_deciding_again)) {
        refine_axes(tried[i], all_axes(tried[i].stage->mesh) & ~made[i]);
      }
    }
  });
  const auto best = std::min_element(tried.begin(), tried.end(), by_objective);
  const auto pays = [&](double objective) {
    return best->objective * (1 + axes_tolerance()) < objective;
  };
  if (best == tried.end() || is_late() || !pays(from.objective)) return std::nullopt;
  while (!is_small() && !is_late()) {
    const double before = best->objective;
    sweep(*best);
    pairs(*best);
    if (!(best->objective < before * (1 - worth_deciding_again))) break;
  }
  if (!pays(least)) return std::nullopt;
  return std::move(*best);
}

Prices PlanMaker::prices(double coeff) const {
  Prices result;
  if (coeff == 0) return result;
  const double price = coeff / task_.cluster.chip.memory_bandwidth;
  for (std::int32_t point : peak_points_) {
    result.emplace_back(point, price / static_cast<double>(peak_points_.size()));
  }
  return result;
}

bool PlanMaker::is_small() const { return task_.classes.ops.size() <= small_program; }

bool PlanMaker::is_medium() const {
  return !is_small() && task_.classes.ops.size() <= medium_program;
}

bool PlanMaker::is_exact() const { return task_.classes.ops.size() <= exact_program; }

double PlanMaker::axes_tolerance() const {
  if (is_exact()) return least_gain;
  const bool is_one_switch =
      task_.cluster.dims.size() == 1 && task_.cluster.dims.front().kind == LinkKind::switched;
  return is_one_switch ? switched_tolerance : merge_tolerance;
}

}  // namespace autoshard::planning
