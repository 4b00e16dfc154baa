#include "planning/late_sums.h"

#include <algorithm>
#include <limits>
#include <map>
#include <queue>
#include <set>
#include <utility>

#include "cost/collectives.h"
#include "cost/compute.h"
#include "cost/redistribution.h"
#include "planning/options.h"

namespace autoshard::planning {
namespace {

constexpr auto never = std::numeric_limits<std::int32_t>::max();

/// A matmul whose sum only updates read.
struct Late {
  std::int32_t op = 0;
  std::int32_t moment = 0;
  /// When the last of its operands is made.
  std::int32_t newest = 0;
  /// Only equal sums are joined.
  CollectiveKind kind = CollectiveKind::all_reduce;
  AxisMask axes = 0;
  /// Of the matmul and of its sum, once.
  double seconds = 0, sum_seconds = 0;
  /// What a device makes, and what the sum leaves of it.
  double bytes = 0, summed_bytes = 0;
  /// When it runs and when its sum does: right behind what runs at this moment.
  std::int32_t runs = -1, is_summed = -1;
  /// What runs at this moment waits for the sum.
  std::int32_t bound = never;
};

/// A value that a matmul reads at `moment` in the order of the program, but runs behind what
/// runs at the moment `runs`.
struct Aside {
  std::int32_t value, moment, runs;
};

/// Anything else that runs, and what is sent for it.
struct Other {
  std::int32_t moment = 0;
  double seconds = 0;
  double sent_seconds = 0;
  /// When the last of what is sent is there; -1: from the start.
  std::int32_t sent_from = -1;
};

/// A collective whose readers are scheduled.
struct Sending {
  double seconds = 0;
  std::int32_t depth = 0, from = -1;
};

/// Calls `visit(source, target)` for everything that flows inside of one step.
template <typename Visit>
void each_join(const Program& program, const Visit& visit) {
  std::vector<bool> is_argument(program.values.size(), false);
  for (const Argument& argument : program.arguments) {
    if (argument.value != no_value) is_argument[argument.value] = true;
  }
  for (const Join& join : program.joins) {
    if (!is_argument[join.target]) visit(join.source, join.target);
  }
}

/// Values that a matmul, or an op of its own kind, is computed from; late matmuls do not
/// count.
std::vector<bool> leading_to_matmuls(const Program& program,
                                     const std::vector<bool>& is_late) {
  std::vector<bool> leads(program.values.size(), false);
  for (bool changes = true; changes;) {
    changes = false;
    const auto mark = [&](std::int32_t value) {
      if (value == no_value || leads[value]) return;
      leads[value] = changes = true;
    };
    each_join(program, [&](std::int32_t source, std::int32_t target) {
      if (leads[target]) mark(source);
    });
    for (std::size_t i = program.ops.size(); i-- > 0;) {
      const Op& op = program.ops[i];
      const Work work = program.rules[op.rule].work;
      bool does = (work == Work::matmul && !is_late[i]) || work == Work::other;
      for (std::int32_t v : op.results) does = does || (v != no_value && leads[v]);
      if (!does) continue;
      for (std::int32_t v : op.operands) mark(v);
    }
  }
  return leads;
}

/// Schedules one loop, or what is in none, from its end.
class FromTheEnd {
 public:
  /// `late` and `others` in the order in which they run. Sums are joined while what they leave
  /// is not more than `most_joined_bytes`.
  FromTheEnd(std::vector<Late*> late, std::vector<Other> others, double most_joined_bytes)
      : late_(std::move(late)), others_(std::move(others)) {
    double joined_bytes = 0;
    for (std::size_t i = 0; i < late_.size(); ++i) {
      const bool joins = i > 0 && late_[i]->kind == late_[i - 1]->kind &&
                         late_[i]->axes == late_[i - 1]->axes &&
                         late_[i]->bound == late_[i - 1]->bound &&
                         joined_bytes + late_[i]->summed_bytes <= most_joined_bytes;
      if (!joins) {
        groups_.emplace_back();
        joined_bytes = 0;
      }
      groups_.back().push_back(late_[i]);
      joined_bytes += late_[i]->summed_bytes;
      needed_.insert(late_[i]->newest);
    }
    depths_.reserve(others_.size());
    for (std::int32_t depth = 0; const Other& other : others_) {
      if (other.sent_seconds > 0) ++depth;
      depths_.push_back(depth);
    }
  }

  void run() {
    while (num_done_ < late_.size()) {
      if (left_ <= 0) end_collective();
      if (!is_sending_) begin_collective();
      if (!is_sending_) {
        // Nothing is to be hidden: all that is left runs where it was.
        const bool is_younger =
            !made_.empty() && (others_.empty() || made_.top()->moment > others_.back().moment);
        if (!made_.empty() && (is_younger || !next_is_free())) {
          run_late();
        } else {
          run_other();
        }
        continue;
      }
      if (next_is_free() && (made_.empty() || depth_now() > depth_at(made_.top()->moment))) {
        run_other();
      } else if (!made_.empty()) {
        run_late();
      } else {
        left_ = 0;
      }
    }
  }

 private:
  struct Younger {
    bool operator()(const Late* a, const Late* b) const { return a->moment < b->moment; }
  };

  std::int32_t now() const { return others_.empty() ? 0 : others_.back().moment; }
  std::int32_t depth_now() const { return depths_.empty() ? 0 : depths_.back(); }
  std::int32_t depth_at(std::int32_t moment) const {
    const auto behind =
        std::upper_bound(others_.begin(), others_.end(), moment,
                         [](std::int32_t m, const Other& other) { return m < other.moment; });
    return behind == others_.begin() ? 0 : depths_[behind - others_.begin() - 1];
  }
  /// All that reads what the last one makes is scheduled.
  bool next_is_free() const {
    return !others_.empty() && (needed_.empty() || others_.back().moment > *needed_.rbegin());
  }

  void begin_collective() {
    const bool is_sum =
        !groups_.empty() && (others_.empty() || now() < groups_.back()[0]->bound) &&
        (sent_.empty() || depth_at(groups_.back().back()->moment) >= sent_.front().depth);
    if (is_sum) {
      summing_ = std::move(groups_.back());
      groups_.pop_back();
      for (const Late* late : summing_) left_ += late->sum_seconds;
    } else if (!sent_.empty()) {
      left_ += sent_.front().seconds;
      sending_ = sent_.front();
      sent_.pop();
    } else {
      return;
    }
    is_sending_ = true;
  }
  void end_collective() {
    for (Late* late : summing_) {
      late->is_summed = std::max(now(), late->moment);
      made_.push(late);
    }
    if (is_sending_ && summing_.empty()) needed_.erase(needed_.find(sending_.from));
    summing_.clear();
    is_sending_ = false;
    left_ = 0;
  }
  void run_other() {
    const Other& other = others_.back();
    left_ -= other.seconds;
    if (other.sent_seconds > 0) {
      sent_.push({other.sent_seconds, depths_.back(), other.sent_from});
      needed_.insert(other.sent_from);
    }
    others_.pop_back();
    depths_.pop_back();
  }
  void run_late() {
    Late* late = made_.top();
    made_.pop();
    left_ -= late->seconds;
    late->runs = std::max(now(), late->moment);
    needed_.erase(needed_.find(late->newest));
    ++num_done_;
  }

  std::vector<Late*> late_;
  std::vector<Other> others_;
  /// Of others: how many of them wait for collectives, up to each.
  std::vector<std::int32_t> depths_;
  std::vector<std::vector<Late*>> groups_;
  /// Moments at which something is made that an unscheduled matmul or collective reads.
  std::multiset<std::int32_t> needed_;
  /// Late ops whose sums are scheduled.
  std::priority_queue<Late*, std::vector<Late*>, Younger> made_;
  std::queue<Sending> sent_;
  Sending sending_{};
  std::vector<Late*> summing_;
  bool is_sending_ = false;
  /// Seconds of the collective that are not hidden yet.
  double left_ = 0;
  std::size_t num_done_ = 0;
};

/// Both operands and the result of a matmul have a dim in common.
bool is_of_batches(const Rule& rule) {
  const auto has = [](const RuleTensor& tensor, std::int32_t factor) {
    return std::any_of(tensor.dims.begin(), tensor.dims.end(), [&](const auto& factors) {
      return std::find(factors.begin(), factors.end(), factor) != factors.end();
    });
  };
  if (rule.work != Work::matmul || rule.operands.size() < 2 || rule.results.empty())
    return false;
  for (std::size_t f = 0; f < rule.factors.size(); ++f) {
    const auto factor = static_cast<std::int32_t>(f);
    if (has(rule.operands[0], factor) && has(rule.operands[1], factor) &&
        has(rule.results[0], factor)) {
      return true;
    }
  }
  return false;
}

/// The op behind which each value can be made at the earliest, -1 for what is computed from
/// arguments alone.
std::vector<std::int32_t> there_after(const Program& program) {
  std::vector<std::int32_t> after(program.values.size(), -1);
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    const Work work = program.rules[op.rule].work;
    auto last = static_cast<std::int32_t>(i);
    if (work == Work::elementwise || work == Work::view) {
      last = op.after;
      for (std::int32_t v : op.operands) {
        if (v != no_value) last = std::max(last, after[v]);
      }
    }
    for (std::int32_t v : op.results) {
      if (v != no_value) after[v] = last;
    }
  }
  return after;
}

/// By op: the first op that waits for it behind a barrier, also by what is computed from it;
/// -1: none does.
std::vector<std::int32_t> waited_for(const Program& program) {
  std::vector<std::int32_t> until(program.ops.size(), -1), of_value(program.values.size(), -1);
  const auto earlier = [](std::int32_t a, std::int32_t b) {
    return a < 0 || b < 0 ? std::max(a, b) : std::min(a, b);
  };
  for (std::size_t i = program.ops.size(); i-- > 0;) {
    const Op& op = program.ops[i];
    until[i] = op.until;
    for (std::int32_t v : op.results) {
      if (v != no_value) until[i] = earlier(until[i], of_value[v]);
    }
    for (std::int32_t v : op.operands) {
      if (v != no_value) of_value[v] = earlier(of_value[v], until[i]);
    }
  }
  return until;
}

/// What a class of ops sends: seconds before it runs, and the steps of its results' sums.
struct Sent {
  double seconds = 0;
  bool is_gathered = false;
  std::vector<std::vector<Step>> sums;
};

/// A plan, and what its late sums change.
class LateSums {
 public:
  LateSums(const Program& program, const Mesh& mesh, const Classes& classes,
           const ProgramMemory& memory, const Cluster& cluster, const LevelSolver& levels,
           const Labels& labels)
      : program_(program),
        mesh_(mesh),
        classes_(classes),
        memory_(memory),
        cluster_(cluster),
        levels_(levels),
        labels_(labels),
        rules_(cluster.compiler.schedule) {
    find_sent();
    if (std::none_of(sent_.begin(), sent_.end(),
                     [](const Sent& sent) { return !sent.sums.empty(); })) {
      return;
    }
    find_late();
    find_bounds();
    group_by_loop();
    if (cluster.compiler.schedule.late_sums) {
      schedule();
    } else {
      put_rings_last();
    }
  }

  std::vector<Transient> waiting() const;

 private:
  double seconds_of(const std::vector<Step>& steps) const {
    double sum = 0;
    for (const Step& step : steps) sum += compiled_seconds(step, cluster_, mesh_);
    return sum;
  }
  double local_bytes(std::int32_t type, const Sharding& sharding) const {
    return program_.types[type].bytes() / static_cast<double>(num_shards(sharding, mesh_));
  }
  double class_seconds(std::size_t op_class) const {
    const OpKind& kind = classes_.kinds[classes_.ops[op_class].kind];
    return compute(program_.rules[kind.rule],
                   levels_.axes(labels_, static_cast<std::int32_t>(op_class)), kind.reads,
                   kind.writes, program_.types, mesh_, cluster_)
        .seconds;
  }
  double compute_seconds(std::size_t op) const { return class_seconds(classes_.class_of[op]); }
  /// The compiler may run the sum of a class of matmuls late: all, or those in rings.
  bool may_wait(std::size_t op_class, const Step& sum) const {
    if (rules_.late_sums) return true;
    return rules_.rings_in_order > 0 &&
           is_ring_of_matmuls(as_compiled(sum, cluster_, mesh_), cluster_, mesh_,
                              class_seconds(op_class));
  }
  std::int32_t moment(std::size_t op) const {
    return memory_.point[static_cast<std::int32_t>(op)];
  }
  bool is_matmul(std::size_t op) const {
    return program_.rules[program_.ops[op].rule].work == Work::matmul;
  }

  void find_sent();
  void find_late();
  void find_bounds();
  void group_by_loop();
  void put_rings_last();
  double copied_for(const Late& ring) const;
  void schedule();
  std::vector<Other> others_in(std::int32_t loop, double trips) const;
  void put_behind_next_product(std::int32_t loop, std::int32_t end,
                               const std::vector<Late*>& members) const;
  void put_aside(std::int32_t loop, bool hides_gathers,
                 const std::vector<bool>& is_waited_for);

  const Program& program_;
  const Mesh& mesh_;
  const Classes& classes_;
  const ProgramMemory& memory_;
  const Cluster& cluster_;
  const LevelSolver& levels_;
  const Labels& labels_;
  const Schedule& rules_;
  /// By class of ops.
  std::vector<Sent> sent_;
  /// By op: seconds of copies that are made before it, for itself and for others.
  std::vector<double> copied_;
  std::vector<bool> leads_on_, is_late_;
  /// By value: `there_after`.
  std::vector<std::int32_t> after_;
  /// By op, and by loop.
  std::vector<std::int32_t> loop_of_, parent_of_;
  std::vector<Late> late_;
  std::vector<Aside> aside_;
  /// In their order.
  std::map<std::int32_t, std::vector<Late*>> by_loop_;
};

void LateSums::find_sent() {
  sent_.resize(classes_.ops.size());
  for (const Use& use : classes_.uses) {
    if (use.is_kept) continue;
    Sent& sent = sent_[use.op];
    const Rule& rule = program_.rules[classes_.kinds[classes_.ops[use.op].kind].rule];
    const FactorAxes axes = levels_.axes(labels_, use.op);
    const TensorType& type = program_.types[classes_.holders[use.holder].type];
    const Sharding& held = levels_.sharding(labels_, use.holder);
    const Sharding used =
        project((use.is_result ? rule.results : rule.operands)[use.position], axes);
    if (!use.is_result) {
      const double seconds = seconds_of(redistribution_steps(type, held, used, 0, mesh_));
      sent.seconds += seconds;
      sent.is_gathered = sent.is_gathered || seconds > 0;
      continue;
    }
    const AxisMask partial = partial_axes(rule, axes);
    std::vector<Step> steps =
        redistribution_steps(type, used, held, partial, mesh_, may_scatter(rule, axes));
    sent.seconds += seconds_of(steps);
    if (rule.work != Work::matmul || partial == 0 || steps.empty() ||
        !may_wait(use.op, steps[0]))
      continue;
    sent.sums.resize(rule.results.size());
    sent.sums[use.position] = std::move(steps);
  }
  copied_.assign(program_.ops.size(), 0);
  for (const Copy& copy : classes_.copies) {
    const Holder& holder = classes_.holders[copy.holder];
    copied_[copy.first_reader] += seconds_of(redistribution_steps(
        program_.types[holder.type], levels_.sharding(labels_, holder.source),
        levels_.sharding(labels_, copy.holder), 0, mesh_));
  }
}

void LateSums::find_late() {
  is_late_.assign(program_.ops.size(), false);
  leads_on_ = leading_to_matmuls(program_, is_late_);
  after_ = there_after(program_);
  // A collective that something computed from a value waits for.
  std::vector<bool> is_sent_on(program_.values.size(), false);
  for (std::size_t i = program_.ops.size(); i-- > 0;) {
    const Op& op = program_.ops[i];
    bool is_sent = sent_[classes_.class_of[i]].seconds + copied_[i] > 0;
    for (std::int32_t v : op.results) is_sent = is_sent || (v != no_value && is_sent_on[v]);
    for (std::int32_t v : op.operands) {
      if (v != no_value && is_sent) is_sent_on[v] = true;
    }
  }
  for (std::size_t i = 0; i < program_.ops.size(); ++i) {
    const Op& op = program_.ops[i];
    const auto& sums = sent_[classes_.class_of[i]].sums;
    if (!is_matmul(i) || sums.empty() || sums[0].empty()) continue;
    if (op.results[0] == no_value || leads_on_[op.results[0]]) continue;
    // What is gathered again hides the last transfer of its ring.
    const bool is_hidden = !rules_.late_sums && !rules_.hides_gathers;
    if (is_hidden && is_sent_on[op.results[0]]) continue;
    Late late{.op = static_cast<std::int32_t>(i), .moment = moment(i)};
    for (std::int32_t v : op.operands) {
      if (v == no_value) continue;
      late.newest = std::max(late.newest, memory_.live[memory_.alias[v]].first);
    }
    const Step& sum = sums[0].front();
    const RuleTensor& made = program_.rules[op.rule].results[0];
    late.kind = sum.kind;
    late.axes = sum.axes;
    late.seconds = compute_seconds(i);
    late.sum_seconds = seconds_of({sum});
    late.bytes =
        local_bytes(made.type, project(made, levels_.axes(labels_, classes_.class_of[i])));
    late.summed_bytes = late.bytes;
    if (sum.kind == CollectiveKind::reduce_scatter) {
      late.summed_bytes /= static_cast<double>(sum.participants);
    }
    late_.push_back(late);
    is_late_[i] = true;
  }
  std::stable_sort(late_.begin(), late_.end(),
                   [](const Late& a, const Late& b) { return a.moment < b.moment; });
}

void LateSums::find_bounds() {
  const std::vector<std::int32_t> until = waited_for(program_);
  // By op: when the first one of it and those behind it runs that leads on.
  std::vector<std::int32_t> first(program_.ops.size() + 1, never);
  for (std::size_t i = program_.ops.size(); i-- > 0;) {
    const auto& results = program_.ops[i].results;
    const bool leads = std::any_of(results.begin(), results.end(), [&](std::int32_t v) {
      return v != no_value && leads_on_[v];
    });
    first[i] = leads ? std::min(first[i + 1], moment(i)) : first[i + 1];
  }
  for (Late& late : late_) {
    if (until[late.op] >= 0) late.bound = first[until[late.op]];
  }
}

/// What else runs in a loop of `trips` trips (-1: in none) and matters to matmuls, in its
/// order. A loop in it runs as one.
std::vector<Other> LateSums::others_in(std::int32_t loop, double trips) const {
  std::vector<Other> others;
  std::map<std::int32_t, Other> inner;
  for (std::size_t i = 0; i < program_.ops.size(); ++i) {
    const Op& op = program_.ops[i];
    std::int32_t child = -1, around = loop_of_[i];
    while (around != loop && around != -1) {
      child = around;
      around = parent_of_[around];
    }
    if (around != loop) continue;
    const bool writes = memory_.writes[static_cast<std::int32_t>(i)][0];
    const double seconds = writes ? op.trips / trips * compute_seconds(i) : 0;
    if (child >= 0) {
      Other& whole = inner[child];
      whole.moment = std::max(whole.moment, moment(i));
      whole.seconds += seconds;
      continue;
    }
    const bool leads =
        is_matmul(i) || std::any_of(op.results.begin(), op.results.end(), [&](std::int32_t v) {
          return v != no_value && leads_on_[v];
        });
    if (is_late_[i] || !leads) continue;
    Other other{.moment = moment(i),
                .seconds = seconds,
                .sent_seconds = sent_[classes_.class_of[i]].seconds + copied_[i]};
    if (!writes && other.sent_seconds == 0) continue;
    for (std::int32_t v : op.operands) {
      if (v == no_value || after_[v] < 0) continue;
      other.sent_from = std::max(other.sent_from, moment(after_[v]));
    }
    others.push_back(other);
  }
  for (const auto& [child, whole] : inner) others.push_back(whole);
  std::stable_sort(others.begin(), others.end(),
                   [](const Other& a, const Other& b) { return a.moment < b.moment; });
  return others;
}

/// Also where nothing is to be hidden, a matmul for a gradient runs behind the next one that
/// the backward pass needs and what is computed from that, and at the end if that is near.
void LateSums::put_behind_next_product(std::int32_t loop, std::int32_t end,
                                       const std::vector<Late*>& members) const {
  std::vector<std::int32_t> matmuls;
  for (std::size_t i = 0; i < program_.ops.size(); ++i) {
    if (loop_of_[i] == loop && is_matmul(i) && !is_late_[i]) matmuls.push_back(moment(i));
  }
  std::sort(matmuls.begin(), matmuls.end());
  for (Late* late : members) {
    const auto next = std::upper_bound(matmuls.begin(), matmuls.end(), late->moment);
    const std::int32_t behind = matmuls.end() - next > 1 ? next[1] - 1 : end;
    late->runs = std::max(late->runs, std::min(behind, late->bound - 1));
    late->is_summed = std::max(late->is_summed, late->runs);
  }
}

/// Products of batches are read as they are in memory, and scheduling takes time for that:
/// from the end, what such a product reads is not ready when the product has been put in
/// place, and another op that is ready comes first. So a product of batches whose readers come
/// later (the one with attention's transposed probabilities) runs behind what the next product
/// of batches reads (the gradient of the scores). Where gathers are hidden other ops come
/// between; they are enough if nothing but gradients waits for the product. What else only
/// gradients read is not made before.
void LateSums::put_aside(std::int32_t loop, bool hides_gathers,
                         const std::vector<bool>& is_waited_for) {
  std::vector<std::pair<std::int32_t, std::int32_t>> products;
  std::vector<bool> drives(program_.values.size(), false);
  std::vector<std::int32_t> first_read(program_.values.size(), never);
  std::vector<std::int32_t> driving_readers(program_.values.size(), 0);
  for (std::size_t i = program_.ops.size(); i-- > 0;) {
    if (loop_of_[i] != loop) continue;
    const Op& op = program_.ops[i];
    bool does_drive = false;
    for (std::int32_t v : op.results) {
      if (v == no_value) continue;
      does_drive =
          does_drive || drives[v] || (is_matmul(i) && !is_late_[i] && is_waited_for[v]);
    }
    for (std::int32_t v : op.operands) {
      if (v == no_value) continue;
      if (does_drive) drives[v] = true;
      const bool is_view = !op.results.empty() && op.results[0] != no_value &&
                           memory_.alias[op.results[0]] == memory_.alias[v];
      if (is_view || is_late_[i]) continue;
      std::int32_t& first = first_read[memory_.alias[v]];
      first = std::min(first, moment(i));
      if (does_drive) ++driving_readers[memory_.alias[v]];
    }
    if (!is_late_[i] && is_of_batches(program_.rules[op.rule])) {
      products.emplace_back(moment(i), static_cast<std::int32_t>(i));
    }
  }
  std::sort(products.begin(), products.end());
  for (std::size_t n = 0; n < products.size(); ++n) {
    const auto [moment, op] = products[n];
    const std::int32_t made = program_.ops[op].results[0];
    if (made == no_value || (hides_gathers && !drives[made])) continue;
    for (std::size_t k = n + 1; k < products.size(); ++k) {
      if (products[k].first >= first_read[memory_.alias[made]]) break;
      std::int32_t newest = -1;
      for (std::int32_t v : program_.ops[products[k].second].operands) {
        if (v != no_value) newest = std::max(newest, memory_.live[memory_.alias[v]].first);
      }
      if (newest <= moment) continue;
      for (std::int32_t v : program_.ops[op].operands) {
        if (v == no_value || program_.values[v].is_free) continue;
        const std::int32_t itself = drives[made] || is_waited_for[made] ? 1 : 0;
        if (driving_readers[memory_.alias[v]] > itself)
          aside_.push_back({memory_.alias[v], moment, newest});
      }
      break;
    }
  }
}

void LateSums::group_by_loop() {
  loop_of_.assign(program_.ops.size(), -1);
  parent_of_.assign(program_.loops.size(), -1);
  for (std::size_t l = program_.loops.size(); l-- > 0;) {
    const Loop& loop = program_.loops[l];
    if (loop.first_op < loop.last_op) parent_of_[l] = loop_of_[loop.first_op];
    std::fill(loop_of_.begin() + loop.first_op, loop_of_.begin() + loop.last_op,
              static_cast<std::int32_t>(l));
  }
  for (Late& late : late_) by_loop_[loop_of_[late.op]].push_back(&late);
}

/// What a ring leaves is sent once more behind it, and only updates read it: the compiler puts
/// all these transfers at the end, and with them the rings, until the transfers that are still
/// open do not keep others from running. Where gathers are hidden, rings come before those
/// that the backward pass waits for.
void LateSums::put_rings_last() {
  for (const auto& [loop, members] : by_loop_) {
    std::int32_t end = 0, gathered = -1;
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      if (loop_of_[i] != loop || !is_matmul(i) || is_late_[i]) continue;
      end = std::max(end, moment(i));
      if (sent_[classes_.class_of[i]].is_gathered || copied_[i] > 0) {
        gathered = std::max(gathered, moment(i));
      }
    }
    std::int64_t in_order = 0;
    for (Late* ring : members) {
      if (rules_.hides_gathers && ring->moment < gathered) continue;
      if (++in_order > rules_.rings_in_order) {
        const std::int32_t last = std::min(end, ring->bound - 1);
        ring->runs = ring->is_summed = std::max(last, ring->moment);
      }
    }
  }
}

/// Bytes of the copy of a late ring's newest operand that stands beside it, for others read it
/// in its own layout: a ring cuts it into the parts that it scatters, and parts that are no
/// whole tiles are no slices.
double LateSums::copied_for(const Late& ring) const {
  const Op& op = program_.ops[ring.op];
  const Rule& rule = program_.rules[op.rule];
  const FactorAxes axes = levels_.axes(labels_, classes_.class_of[ring.op]);
  const Sharding& held = levels_.sharding(labels_, classes_.holder_of[op.results[0]]);
  std::int32_t newest = -1;
  double bytes = 0;
  for (std::size_t k = 0; k < op.operands.size(); ++k) {
    if (op.operands[k] == no_value) continue;
    const LiveRange fused = memory_.live_if_stored[op.operands[k]];
    const LiveRange live =
        fused.last > 0 ? fused : memory_.live[memory_.alias[op.operands[k]]];
    if (live.first <= newest) continue;
    newest = live.first;
    bytes = 0;
    if (live.last <= ring.moment + 1) continue;
    const RuleTensor& operand = rule.operands[k];
    for (std::size_t d = 0; d < held.dims.size(); ++d) {
      const auto part = program_.types[rule.results[0].type].dims[d] /
                        static_cast<std::int64_t>(num_shards(held.dims[d], mesh_));
      if (part % cluster_.chip.tile_columns == 0) continue;
      const std::int32_t factor = rule.results[0].dims[d][0];
      const bool is_cut =
          std::any_of(operand.dims.begin(), operand.dims.end(), [&](const auto& factors) {
            return std::find(factors.begin(), factors.end(), factor) != factors.end();
          });
      if (is_cut) bytes = local_bytes(operand.type, project(operand, axes));
    }
  }
  return bytes;
}

void LateSums::schedule() {
  const std::vector<bool> is_waited_for = leading_to_matmuls(program_, is_late_);
  for (const auto& [loop, members] : by_loop_) {
    std::vector<Other> others = others_in(loop, program_.ops[members[0]->op].trips);
    const std::int32_t end = others.empty() ? 0 : others.back().moment;
    const bool hides_gathers = std::any_of(others.begin(), others.end(),
                                           [](const Other& o) { return o.sent_seconds > 0; });
    if (rules_.late_batched_matmuls) put_aside(loop, hides_gathers, is_waited_for);
    FromTheEnd(members, std::move(others), cluster_.compiler.collectives.joined_bytes).run();
    put_behind_next_product(loop, end, members);
    // From the end the gradient that is made first is scheduled last: it has nothing to hide.
    Late& first = *members.front();
    if (first.bound == never) continue;
    first.runs = first.is_summed = std::max(first.moment, first.bound - 1);
  }
}

std::vector<Transient> LateSums::waiting() const {
  std::vector<Transient> waiting;
  /// By value: when it is read last, in the order of the program and late.
  std::map<std::int32_t, LiveRange> read;
  const auto add = [&](std::int32_t value, std::int32_t moment, std::int32_t runs) {
    LiveRange& last = read[value];
    last.first = std::max(last.first, moment + 1);
    last.last = std::max(last.last, runs + 1);
  };
  for (const Aside& aside : aside_) add(aside.value, aside.moment, aside.runs);
  for (const Late& late : late_) {
    if (late.runs < late.is_summed) {
      waiting.push_back({{late.runs + 1, late.is_summed + 1}, late.bytes});
    }
    if (!rules_.late_sums && late.runs > late.moment) {
      waiting.push_back({{late.moment + 1, late.runs + 1}, copied_for(late)});
    }
    for (std::int32_t v : program_.ops[late.op].operands) {
      if (v == no_value || program_.values[v].is_free) continue;
      add(memory_.alias[v], late.moment, late.runs);
    }
  }
  for (const auto& [value, last] : read) {
    // What rings read is stored.
    const bool is_fused = memory_.live[value].last == 0;
    const std::int32_t until = is_fused ? last.first : memory_.live[value].last;
    const std::int32_t holder = classes_.holder_of[value];
    if (until >= last.last || holder < 0) continue;
    if (is_fused && rules_.late_sums) continue;
    waiting.push_back(
        {{until, last.last},
         local_bytes(classes_.holders[holder].type, levels_.sharding(labels_, holder))});
  }
  return waiting;
}

}  // namespace

std::vector<Transient> waiting_for_sums(const Program& program, const Mesh& mesh,
                                        const Classes& classes, const ProgramMemory& memory,
                                        const Cluster& cluster, const LevelSolver& levels,
                                        const Labels& labels) {
  return LateSums(program, mesh, classes, memory, cluster, levels, labels).waiting();
}

}  // namespace autoshard::planning
