#include "planning/mesh_shortlist.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace autoshard::planning {
namespace {

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

/// Leaves the best `most` of a sorted list, as far as they are worth joining.
void keep_finalists(std::vector<Candidate>& list, std::size_t most) {
  if (list.size() > most) list.resize(most);
  const double worth_up_to = list.empty() ? 0 : list.front().objective * worth_joining;
  std::erase_if(list, [&](const Candidate& c) { return c.objective > worth_up_to; });
}

}  // namespace

MeshShortlist::MeshShortlist(const SearchTask& task, PlanMaker& plans)
    : task_(task),
      plans_(plans),
      may_merge_(task.options.merge_axes && task.program.mesh.rank() > 1 &&
                 !pins_need_axes(task.program)),
      // Also on a mesh that stays as it is, plans on coarser ones are good starts.
      may_group_(may_merge_ ||
                 (task.program.mesh.rank() > 2 && !pins_need_axes(task.program))) {
  for (int axis = 0; axis < task.program.mesh.rank(); ++axis) single_.push_back({axis});
}

std::vector<Candidate> MeshShortlist::at_price(double coeff) {
  task_.phases.start("levels");
  auto [single, tried] = axis_by_axis(coeff);
  task_.phases.start("sweeps");
  sweep_grouped(tried);
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
  return std::move(tried);
}

MeshShortlist::Tried MeshShortlist::axis_by_axis(double coeff) {
  std::vector<Groups> meshes = {single_};
  bool is_single_one_of_two = false;
  if (may_group_ && !plans_.is_late()) {
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
  plans_.workers().for_each(tried.size(), [&](std::size_t i) {
    tried[i] = plans_.greedy_by_axis(meshes[i], coeff);
  });
  Candidate single = std::move(tried.front());
  tried.erase(tried.begin());
  if (is_single_one_of_two) tried.push_back(single);
  std::stable_sort(tried.begin(), tried.end(), by_objective);
  return {std::move(single), std::move(tried)};
}

/// Sweeps the plans that are not much dearer than the cheapest, and sorts all.
void MeshShortlist::sweep_grouped(std::vector<Candidate>& list) {
  const double worth_up_to = list.empty() ? 0 : list.front().objective * worth_a_sweep;
  const auto again = [&](std::size_t count, const auto& improve) {
    plans_.workers().for_each(std::min(list.size(), count), [&](std::size_t i) {
      if (list[i].objective <= worth_up_to && !plans_.is_late()) improve(list[i]);
    });
    std::stable_sort(list.begin(), list.end(), by_objective);
  };
  std::vector<Candidate> together = decided_together(list);
  // What the first axis does when it knows of the second shows which meshes are worth more.
  if (!plans_.is_small()) {
    again(list.size(),
          [&](Candidate& c) { plans_.refine_axes(c, all_axes(c.stage->mesh) >> 1); });
  }
  // A plan on one axis is a plan on every mesh: axis by axis, none begins with less.
  if (list.size() > 1 && list.front().num_axes() == 1) {
    Candidate from_one = plans_.on_mesh(list.front(), list[1].stage->groups);
    if (from_one.objective < list[1].objective) list[1] = std::move(from_one);
  }
  again(plans_.is_small() ? list.size() : most_finalists,
        [&](Candidate& c) { plans_.sweep(c); });
  keep_finalists(list, most_finalists);
  std::vector<Candidate> more;
  for (Candidate& c : together) {
    if (list.empty() || c.objective * (1 + merge_tolerance) < list.front().objective) {
      plans_.sweep(c);
      more.push_back(std::move(c));
    }
  }
  list.insert(list.end(), more.begin(), more.end());
  std::stable_sort(list.begin(), list.end(), by_objective);
}

/// The best meshes of two axes where both are decided together in few rounds: axis by axis,
/// the first may end where the second cannot help. None where memory has a price, and no plan
/// that does not fit: whether a price is needed is for those of the list to say.
std::vector<Candidate> MeshShortlist::decided_together(const std::vector<Candidate>& list) {
  if (!plans_.is_medium() || list.empty() || !list.front().prices.empty()) return {};
  const double worth_up_to = list.front().objective * worth_a_sweep;
  std::vector<Candidate> tried;
  for (const Candidate& c : list) {
    if (c.num_axes() == 2 && c.objective <= worth_up_to) tried.push_back(c);
  }
  plans_.workers().for_each(tried.size(), [&](std::size_t i) {
    if (!plans_.is_late()) plans_.refine_together(tried[i]);
  });
  std::erase_if(tried, [&](Candidate& c) { return !plans_.would_fit(c); });
  std::stable_sort(tried.begin(), tried.end(), by_objective);
  if (tried.size() > most_finalists) tried.resize(most_finalists);
  return tried;
}

std::vector<Candidate> MeshShortlist::best_of(std::vector<Candidate> list) {
  task_.phases.start("joint");
  Candidate single = std::move(list.back());
  list.pop_back();
  if (list.empty() || plans_.is_small()) plans_.join(single);
  if (list.empty()) return {single};
  std::optional<Candidate> finer;
  if (!plans_.is_small() && list.front().prices.empty()) {
    const double least = list.front().objective;
    for (const Candidate& c : list) {
      if (finer && !plans_.is_medium()) break;
      std::optional<Candidate> other = plans_.split(c, least);
      if (other && (!finer || other->objective < finer->objective)) finer = std::move(other);
    }
  }
  if (!finer) {
    task_.phases.start("joint");
    keep_finalists(list, most_finalists);
    // A mesh has one search, and no two threads share it.
    if (list.size() > 1 && list[0].stage == list[1].stage) list.pop_back();
    plans_.workers().for_each(list.size(), [&](std::size_t i) {
      if (!plans_.is_late()) plans_.join(list[i]);
    });
  }
  if (plans_.is_small()) {
    const Candidate& best = *std::min_element(list.begin(), list.end(), by_objective);
    finer = plans_.split(best, best.objective);
  }
  if (finer) list.push_back(*std::move(finer));
  list.push_back(std::move(single));
  const auto cost = [](const Candidate& c) { return c.objective; };
  std::swap(*with_fewest_axes(list, cost, plans_.axes_tolerance()), list.front());
  return list;
}

std::vector<Groups> MeshShortlist::two_groups() const {
  std::vector<Groups> result;
  const int rank = task_.program.mesh.rank();
  for (int first = rank; first > 0; --first) {
    Groups groups(first < rank ? 2 : 1);
    for (int axis = 0; axis < rank; ++axis) groups[axis < first ? 0 : 1].push_back(axis);
    result.push_back(std::move(groups));
  }
  return result;
}

}  // namespace autoshard::planning
