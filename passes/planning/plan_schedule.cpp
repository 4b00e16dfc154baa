#include "planning/plan_schedule.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "memory/program_index.h"
#include "planning/plan_costs.h"
#include "planning/stream_schedule.h"

namespace autoshard::planning {
namespace {

using Place = PlannedReshard::Place;

constexpr std::int32_t no_node = -1;
/// Trips are products of counts: equal ones may differ in the last digits.
constexpr double same_trips = 1 + 1e-9;

/// In which order what belongs to one op stands in the program.
enum Rank : std::int64_t { init, loop, copy, operand, halo, op, result, yield, num_ranks };

std::int64_t place_of(std::int32_t op, Rank rank) { return op * num_ranks + rank; }

/// An op, a loop, or one collective.
struct Node {
  /// The loop in whose body it runs.
  std::int32_t home = no_loop;
  /// In the order of the program.
  std::int64_t place = 0;
  /// One trip of its home: seconds, cores and links, and which nodes it waits for.
  Task task;
  /// The collective that it is: a step of a move.
  std::int32_t move = -1, step = -1;
};

/// The collectives of one move, each behind the one before; `no_node`: it has none.
struct Chain {
  std::int32_t first = no_node, last = no_node;
};

bool hides(const Schedule& schedule, CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_gather:
      return schedule.hides_gathers;
    case CollectiveKind::all_reduce:
    case CollectiveKind::reduce_scatter:
      return schedule.hides_sums;
    case CollectiveKind::all_to_all:
    case CollectiveKind::permute:
      return schedule.hides_exchanges;
  }
  return false;
}

LinkStreams links_of(const Step& step, const Cluster& cluster) {
  LinkStreams links = 0;
  for (std::size_t axis = 0; axis < cluster.axes.size(); ++axis) {
    if (!((step.axes >> axis) & 1u)) continue;
    for (const AxisPart& part : cluster.axes[axis]) {
      links |= stream_of(cluster.dims[part.dim].kind);
    }
  }
  return links;
}

class PlanTasks {
 public:
  PlanTasks(const ProgramOnMesh& on, const PlanCosts& costs)
      : on_(on),
        costs_(costs),
        index_(on.program),
        joins_to_(index_.num_values),
        providers_(index_.num_values),
        is_known_(index_.num_values, false),
        join_chain_(on.program.joins.size()),
        result_chain_(on.program.ops.size()),
        scalar_chain_(on.program.ops.size()),
        halos_(on.program.ops.size()) {
    made_.exposed.resize(costs.moves.size());
    made_.slack.resize(costs.moves.size());
  }

  PlanSchedule run() {
    find_trips();
    add_ops_and_loops();
    for (std::size_t m = 0; m < costs_.moves.size(); ++m) add_move(m);
    for (std::size_t j = 0; j < on_.program.joins.size(); ++j) {
      joins_to_[on_.program.joins[j].target].push_back(static_cast<std::int32_t>(j));
    }
    for (std::int32_t i = 0; i < index_.num_ops; ++i) link_op(i);
    link_copies();
    for (std::size_t j = 0; j < on_.program.joins.size(); ++j) link_join(j);
    schedule_all();
    made_.all_hidden_seconds = costs_.compute_seconds;
    for (double busy : busy_) {
      made_.all_hidden_seconds = std::max(made_.all_hidden_seconds, busy);
    }
    return std::move(made_);
  }

 private:
  using Nodes = std::vector<std::int32_t>;

  void find_trips();
  void add_ops_and_loops();
  void add_move(std::size_t m);
  void add_ring(std::size_t m, std::size_t step);
  void keep_chain(const CostedMove& move, const Chain& chain);
  std::pair<std::int32_t, std::int64_t> home_and_place(const CostedMove& move) const;
  bool is_yield(const Join& join) const;
  const Nodes& providers(std::int32_t value);
  Nodes sources(std::int32_t i, std::size_t k);
  void link(std::int32_t before, std::int32_t after);
  void link_op(std::int32_t i);
  void link_copies();
  void link_join(std::size_t j);
  void schedule_all();
  double schedule(Nodes members, LinkStreams& links);
  void note(const Node& node, const TaskTimes& times);

  double trips_of(std::int32_t home) const { return trips_[home + 1]; }
  /// How often what runs so often in a step runs in one trip of its home; 0 in one that has
  /// none.
  double runs_in(double trips, std::int32_t home) const {
    return trips_of(home) > 0 ? trips / trips_of(home) : 0;
  }
  std::int32_t loop_node(std::int32_t loop) const { return index_.num_ops + loop; }

  const ProgramOnMesh& on_;
  const PlanCosts& costs_;
  const ProgramIndex index_;
  PlanSchedule made_;
  std::vector<Node> nodes_;
  /// By node: which of the tasks of its home it is.
  Nodes number_;
  /// By loop, from `no_loop` on: how often its body runs in a step.
  std::vector<double> trips_;
  /// By value: the joins into it, and what makes it; `is_known_` where that was asked.
  std::vector<Nodes> joins_to_, providers_;
  std::vector<bool> is_known_;
  std::vector<Chain> join_chain_;
  /// By op: position and chain of what is done to its results, what is done to its scalars,
  /// and halos.
  std::vector<std::vector<std::pair<std::int32_t, Chain>>> result_chain_;
  std::vector<Chain> scalar_chain_;
  std::vector<Nodes> halos_;
  /// By op and operand, and by value and sharding class of a copy: there by its first reader.
  std::map<std::pair<std::int32_t, std::int32_t>, Chain> operand_chain_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::map<std::int32_t, Chain>> copy_chain_;
  /// Seconds that each stream of links is taken.
  std::array<double, num_link_streams> busy_{};
};

void PlanTasks::find_trips() {
  trips_.assign(on_.program.loops.size() + 1, 1);
  for (std::size_t l = on_.program.loops.size(); l-- > 0;) {
    const std::int32_t parent = index_.loops.parent(static_cast<std::int32_t>(l));
    trips_[l + 1] = trips_of(parent) * on_.program.loops[l].trips;
  }
}

void PlanTasks::add_ops_and_loops() {
  for (std::int32_t i = 0; i < index_.num_ops; ++i) {
    const std::int32_t home = index_.loops.of_op(i);
    const double runs = runs_in(index_.op(i).trips, home);
    nodes_.push_back(
        {home, place_of(i, Rank::op), {runs * costs_.ops[i].seconds, true, 0, {}}});
  }
  for (std::size_t l = 0; l < on_.program.loops.size(); ++l) {
    const std::int32_t parent = index_.loops.parent(static_cast<std::int32_t>(l));
    nodes_.push_back(
        {parent, place_of(on_.program.loops[l].first_op, Rank::loop), {0, true, 0, {}}});
  }
}

bool PlanTasks::is_yield(const Join& join) const {
  return index_.is_carried(join.target) && index_.slot_of(join.target).yielded == join.source;
}

/// Where the collectives of a move stand: it runs as often as the body of their home.
std::pair<std::int32_t, std::int64_t> PlanTasks::home_and_place(const CostedMove& move) const {
  const PlannedReshard& what = move.move;
  if (what.place != Place::join) {
    const Rank rank = move.copy >= 0                 ? Rank::copy
                      : what.place == Place::operand ? Rank::operand
                      : what.place == Place::halo    ? Rank::halo
                                                     : Rank::result;
    return {index_.loops.of_op(what.index), place_of(what.index, rank)};
  }
  const Join& join = on_.program.joins[what.index];
  if (index_.is_carried(join.target)) {
    const std::int32_t l = index_.slot_of(join.target).loop;
    const Loop& loop = on_.program.loops[l];
    if (is_yield(join)) return {l, place_of(loop.last_op - 1, Rank::yield)};
    return {index_.loops.parent(l), place_of(loop.first_op, Rank::init)};
  }
  if (index_.is_argument(join.target)) {
    return {no_loop, place_of(index_.num_ops, Rank::yield)};
  }
  const std::int32_t maker = index_.producer[join.source];
  return {index_.home(join.source), place_of(maker, Rank::yield)};
}

/// A loop of the matmul that scatters its sums: the links are busy while it multiplies, and
/// what they take longer is exposed.
void PlanTasks::add_ring(std::size_t m, std::size_t step) {
  const CostedMove& move = costs_.moves[m];
  Task& matmul = nodes_[move.move.index].task;
  const double multiplies = costs_.ops[move.move.index].seconds + move.compute_seconds;
  const double longer = move.step_seconds[step] - multiplies;
  matmul.seconds += std::max(0.0, longer);
  matmul.links |= links_of(move.steps[step], on_.cluster);
  made_.exposed[m].push_back(move.move.trips * std::max(0.0, longer));
  made_.slack[m].push_back(std::max(0.0, -longer));
}

void PlanTasks::add_move(std::size_t m) {
  const CostedMove& move = costs_.moves[m];
  auto [home, place] = home_and_place(move);
  const double most = move.move.trips * same_trips;
  while (home != no_loop && trips_of(home) > most) home = index_.loops.parent(home);
  const double runs = runs_in(move.move.trips, home);
  if (move.compute_seconds > 0 && move.move.place == Place::join) {
    nodes_.push_back({home, place, {runs * move.compute_seconds, true, 0, {}}});
  } else if (move.compute_seconds > 0) {
    Node& at = nodes_[move.move.index];
    at.task.seconds += move.compute_seconds * runs_in(move.move.trips, at.home);
  }
  Chain chain;
  for (std::size_t k = 0; k < move.steps.size(); ++k) {
    const LinkStreams links = links_of(move.steps[k], on_.cluster);
    for (int stream = 0; stream < num_link_streams; ++stream) {
      if ((links >> stream) & 1u) busy_[stream] += move.move.trips * move.step_seconds[k];
    }
    if (move.is_ring[k]) {
      add_ring(m, k);
      continue;
    }
    const bool is_hidden =
        links != 0 && hides(on_.cluster.compiler.schedule, move.steps[k].kind);
    const auto node = static_cast<std::int32_t>(nodes_.size());
    nodes_.push_back({home,
                      place,
                      {runs * move.step_seconds[k], !is_hidden, links, {}},
                      static_cast<std::int32_t>(m),
                      static_cast<std::int32_t>(k)});
    if (chain.last != no_node) nodes_.back().task.after.push_back(chain.last);
    if (chain.first == no_node) chain.first = node;
    chain.last = node;
    made_.exposed[m].push_back(0);
    made_.slack[m].push_back(0);
  }
  if (chain.first != no_node) keep_chain(move, chain);
}

void PlanTasks::keep_chain(const CostedMove& move, const Chain& chain) {
  const PlannedReshard& what = move.move;
  if (move.copy >= 0) {
    const Copy& copy = on_.classes.copies[move.copy];
    copy_chain_[{copy.value, copy.sharding_class}][copy.first_reader] = chain;
    return;
  }
  switch (what.place) {
    case Place::operand:
      operand_chain_[{what.index, what.position}] = chain;
      break;
    case Place::halo:
      halos_[what.index].push_back(chain.first);
      break;
    case Place::join:
      join_chain_[what.index] = chain;
      break;
    case Place::result:
      if (what.value == no_value) {
        scalar_chain_[what.index] = chain;
      } else {
        result_chain_[what.index].emplace_back(what.position, chain);
      }
      break;
  }
}

/// What a reader of the value waits for.
const PlanTasks::Nodes& PlanTasks::providers(std::int32_t value) {
  Nodes& found = providers_[value];
  if (is_known_[value]) return found;
  is_known_[value] = true;
  const std::int32_t maker = index_.producer[value];
  if (maker != no_op) {
    std::int32_t last = maker;
    for (const auto& [position, chain] : result_chain_[maker]) {
      if (index_.op(maker).results[position] == value) last = chain.last;
    }
    found.push_back(last);
  } else if (index_.is_carried(value)) {
    found.push_back(loop_node(index_.slot_of(value).loop));
  } else if (!index_.is_argument(value)) {
    for (std::int32_t j : joins_to_[value]) {
      if (join_chain_[j].last != no_node) {
        found.push_back(join_chain_[j].last);
        continue;
      }
      const Nodes before = providers(on_.program.joins[j].source);
      providers_[value].insert(providers_[value].end(), before.begin(), before.end());
    }
  }
  return providers_[value];
}

/// What operand k of op i is read from, before it is resharded for the op alone.
PlanTasks::Nodes PlanTasks::sources(std::int32_t i, std::size_t k) {
  const std::int32_t value = index_.op(i).operands[k];
  if (value == no_value || index_.is_free(value)) return {};
  const std::int32_t sharding_class =
      on_.classes.operand_class[on_.classes.operand_offset[i] + k];
  const auto copies = copy_chain_.find({value, sharding_class});
  if (copies == copy_chain_.end()) return providers(value);
  // Readers far from each other have copies of their own.
  const auto next = copies->second.upper_bound(i);
  return next == copies->second.begin() ? providers(value)
                                        : Nodes{std::prev(next)->second.last};
}

/// `after` waits for `before`, or the loops around them do. What stands behind it in the
/// program is of an earlier trip.
void PlanTasks::link(std::int32_t before, std::int32_t after) {
  while (nodes_[before].home != nodes_[after].home) {
    std::int32_t& inner =
        index_.loops.contains(nodes_[before].home, nodes_[after].home) ? after : before;
    inner = loop_node(nodes_[inner].home);
  }
  if (nodes_[before].place < nodes_[after].place) nodes_[after].task.after.push_back(before);
}

void PlanTasks::link_op(std::int32_t i) {
  const Op& what = index_.op(i);
  for (std::size_t k = 0; k < what.operands.size(); ++k) {
    const Nodes before = sources(i, k);
    const auto own = operand_chain_.find({i, static_cast<std::int32_t>(k)});
    const std::int32_t reader = own == operand_chain_.end() ? i : own->second.first;
    for (std::int32_t node : before) {
      link(node, reader);
      for (std::int32_t halo : halos_[i]) link(node, halo);
    }
    if (own != operand_chain_.end()) link(own->second.last, i);
  }
  for (std::int32_t node : halos_[i]) link(node, i);
  if (what.after >= 0) {
    const std::int32_t scalar = scalar_chain_[what.after].last;
    link(scalar == no_node ? what.after : scalar, i);
  }
  if (scalar_chain_[i].first != no_node) link(i, scalar_chain_[i].first);
  for (const auto& [position, chain] : result_chain_[i]) link(i, chain.first);
}

void PlanTasks::link_copies() {
  for (const auto& [of, chains] : copy_chain_) {
    for (const auto& [reader, chain] : chains) {
      for (std::int32_t node : providers(of.first)) link(node, chain.first);
    }
  }
}

void PlanTasks::link_join(std::size_t j) {
  const Join& join = on_.program.joins[j];
  const Chain& chain = join_chain_[j];
  const Nodes before = providers(join.source);
  if (chain.first != no_node) {
    for (std::int32_t node : before) link(node, chain.first);
  }
  if (!index_.is_carried(join.target) || is_yield(join)) return;
  const std::int32_t into = loop_node(index_.slot_of(join.target).loop);
  if (chain.last != no_node) {
    link(chain.last, into);
  } else {
    for (std::int32_t node : before) link(node, into);
  }
}

void PlanTasks::schedule_all() {
  number_.resize(nodes_.size());
  std::vector<Nodes> members(on_.program.loops.size() + 1);
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    members[nodes_[n].home + 1].push_back(static_cast<std::int32_t>(n));
  }
  for (std::size_t l = 0; l < on_.program.loops.size(); ++l) {
    const auto loop = static_cast<std::int32_t>(l);
    Task& task = nodes_[loop_node(loop)].task;
    task.seconds =
        on_.program.loops[l].trips * schedule(std::move(members[l + 1]), task.links);
  }
  LinkStreams all = 0;
  made_.scheduled_seconds = schedule(std::move(members[0]), all);
}

/// Seconds of one trip of a loop, and the links that are used in it.
double PlanTasks::schedule(Nodes members, LinkStreams& links) {
  std::stable_sort(members.begin(), members.end(), [&](std::int32_t a, std::int32_t b) {
    return nodes_[a].place < nodes_[b].place;
  });
  std::vector<Task> tasks;
  tasks.reserve(members.size());
  for (std::size_t t = 0; t < members.size(); ++t) {
    number_[members[t]] = static_cast<std::int32_t>(t);
    tasks.push_back(nodes_[members[t]].task);
    for (std::int32_t& before : tasks.back().after) before = number_[before];
    links |= tasks.back().links;
  }
  const StreamSchedule found = scheduled_from_end(tasks, on_.cluster.chip.overlap_slowdown);
  for (std::size_t t = 0; t < members.size(); ++t) note(nodes_[members[t]], found.tasks[t]);
  return found.seconds;
}

void PlanTasks::note(const Node& node, const TaskTimes& times) {
  if (node.move < 0) return;
  const double exposed = node.task.computes ? node.task.seconds : times.exposed;
  made_.exposed[node.move][node.step] = trips_of(node.home) * exposed;
  made_.slack[node.move][node.step] = node.task.computes ? 0 : times.slack;
}

}  // namespace

PlanSchedule schedule_of(const ProgramOnMesh& on, const PlanCosts& costs) {
  return PlanTasks(on, costs).run();
}

}  // namespace autoshard::planning
