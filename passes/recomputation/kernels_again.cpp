#include "recomputation/kernels_again.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "cost/compute.h"
#include "memory/program_memory.h"

namespace autoshard::recomputation {
namespace {

using Numbers = std::vector<std::int32_t>;

void make_unique(Numbers& numbers) {
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
}

/// Who reads and makes the values of a program.
struct Index {
  std::vector<Numbers> readers;  ///< by value: ops
  Numbers maker;                 ///< by value: an op, or -1
  /// By value: it leaves the program, or is carried by a loop.
  std::vector<bool> is_needed;

  explicit Index(const Program& program)
      : readers(program.values.size()),
        maker(program.values.size(), -1),
        is_needed(program.values.size()) {
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      const autoshard::Op& op = program.ops[i];
      const auto number = static_cast<std::int32_t>(i);
      for (const std::int32_t v : op.operands) {
        if (v != no_value && !op.is_unread) readers[v].push_back(number);
      }
      for (const std::int32_t v : op.results) {
        if (v != no_value) maker[v] = number;
      }
    }
    for (const Join& join : program.joins) is_needed[join.source] = true;
    for (const std::int32_t v : program.results) {
      if (v != no_value) is_needed[v] = true;
    }
    for (const Loop& loop : program.loops) {
      for (const std::int32_t v : loop.yielded) {
        if (v != no_value) is_needed[v] = true;
      }
    }
  }
};

/// A value that is computed again.
struct Trial {
  std::size_t group = 0;
  Clones clones;
  Numbers originals;  ///< ops of the program of which there are copies
  Numbers near;       ///< ops whose parts of kernels may change, `originals` included
};

/// A copy of an op, and where it is to stand.
struct Copy {
  std::int32_t before = 0;  ///< an op of the program
  std::int32_t original = 0;
  std::size_t trial = 0;
  autoshard::Op op;
};

/// A program with copies for several trials, which have nothing to do with each other.
class Rewriting {
 public:
  Rewriting(const Block& block, const PlannedKernels& plan, const Index& index,
            std::span<const Trial> trials);

  /// Seconds that each trial adds, besides those of its clones.
  std::vector<double> seconds();

 private:
  void write(std::size_t trial);
  void add_copy(std::size_t trial, std::int32_t before, std::int32_t original);
  /// What stands for an operand, a cast of a copy included.
  std::int32_t read(std::size_t trial, std::int32_t before, std::int32_t value);
  void leave_out_unread(const Trial& trial);
  void put_copies_in();
  double seconds_of(std::int32_t original, const KernelPart& part) const;

  const Block& block_;
  const PlannedKernels& plan_;
  const Index& index_;
  std::span<const Trial> trials_;
  std::map<std::int32_t, std::int32_t> source_of_;  ///< what is cast -> what it is cast from
  Program program_;
  std::vector<Copy> copies_;
  std::map<std::int32_t, std::int32_t> copy_of_;  ///< by value, of one trial
  Numbers place_;                                 ///< by op of the program as it was
  Numbers place_of_copy_;                         ///< by place in `copies_`
};

Rewriting::Rewriting(const Block& block, const PlannedKernels& plan, const Index& index,
                     std::span<const Trial> trials)
    : block_(block), plan_(plan), index_(index), trials_(trials), program_(plan.program) {
  for (const auto& [source, result] : plan.rounded) source_of_[result] = source;
}

std::int32_t Rewriting::read(std::size_t trial, std::int32_t before, std::int32_t value) {
  if (value == no_value) return value;
  const auto known = copy_of_.find(value);
  if (known != copy_of_.end()) return known->second;
  const auto cast = source_of_.find(value);
  if (cast == source_of_.end() || !copy_of_.contains(cast->second)) return value;
  add_copy(trial, before, index_.maker[value]);
  return copy_of_.at(value);
}

void Rewriting::add_copy(std::size_t trial, std::int32_t before, std::int32_t original) {
  autoshard::Op op = plan_.program.ops[original];
  for (std::int32_t& v : op.operands) v = read(trial, before, v);
  for (std::int32_t& v : op.results) {
    if (v == no_value) continue;
    const auto made = static_cast<std::int32_t>(program_.values.size());
    program_.values.push_back(plan_.program.values[v]);
    copy_of_[v] = made;
    v = made;
  }
  copies_.push_back({before, original, trial, std::move(op)});
}

void Rewriting::write(std::size_t trial) {
  copy_of_.clear();
  for (const Batch& batch : trials_[trial].clones.batches) {
    const std::int32_t reader = block_.ops[batch.position].in_program;
    for (const std::int32_t position : batch.ops) {
      const std::int32_t original = block_.ops[position].in_program;
      if (original >= 0) add_copy(trial, reader, original);
    }
    autoshard::Op& op = program_.ops[reader];
    for (std::int32_t& v : op.operands) v = read(trial, reader, v);
  }
  leave_out_unread(trials_[trial]);
}

/// Copies replace originals that nobody reads any more.
void Rewriting::leave_out_unread(const Trial& trial) {
  const auto reads = [](const autoshard::Op& op, std::int32_t v) {
    return !op.is_unread &&
           std::find(op.operands.begin(), op.operands.end(), v) != op.operands.end();
  };
  const auto is_read = [&](std::int32_t v) {
    if (v == no_value) return false;
    const Numbers& readers = index_.readers[v];
    return index_.is_needed[v] ||
           std::any_of(readers.begin(), readers.end(),
                       [&](std::int32_t op) { return reads(program_.ops[op], v); }) ||
           std::any_of(copies_.begin(), copies_.end(),
                       [&](const Copy& copy) { return reads(copy.op, v); });
  };
  // Casts of what has copies are among these alone.
  Numbers ops = trial.originals;
  for (const Copy& copy : copies_) ops.push_back(copy.original);
  make_unique(ops);
  for (auto at = ops.rbegin(); at != ops.rend(); ++at) {
    autoshard::Op& op = program_.ops[*at];
    op.is_unread = op.is_unread || std::none_of(op.results.begin(), op.results.end(), is_read);
  }
}

void Rewriting::put_copies_in() {
  Numbers order(copies_.size());
  for (std::size_t at = 0; at < order.size(); ++at) order[at] = static_cast<std::int32_t>(at);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return copies_[a].before < copies_[b].before;
  });
  const std::vector<autoshard::Op> before = std::exchange(program_.ops, {});
  place_.resize(before.size() + 1);
  place_of_copy_.resize(copies_.size());
  auto next = order.begin();
  for (std::size_t i = 0; i < before.size(); ++i) {
    for (; next != order.end() && copies_[*next].before == static_cast<std::int32_t>(i);
         ++next) {
      place_of_copy_[*next] = static_cast<std::int32_t>(program_.ops.size());
      program_.ops.push_back(copies_[*next].op);
    }
    place_[i] = static_cast<std::int32_t>(program_.ops.size());
    program_.ops.push_back(before[i]);
  }
  place_[before.size()] = static_cast<std::int32_t>(program_.ops.size());
  for (autoshard::Op& op : program_.ops) {
    if (op.after >= 0) op.after = place_[op.after];
    if (op.until >= 0) op.until = place_[op.until];
  }
  for (Loop& loop : program_.loops) {
    if (loop.first_op >= loop.last_op) {
      loop.first_op = loop.last_op = place_[loop.first_op];
      continue;
    }
    loop.last_op = place_[loop.last_op - 1] + 1;
    loop.first_op = place_[loop.first_op];
  }
  for (Body& body : program_.bodies) body.after = place_[body.after];
}

double Rewriting::seconds_of(std::int32_t original, const KernelPart& part) const {
  const Program& program = plan_.program;
  const autoshard::Op& op = program.ops[original];
  return op.trips * compute(program.rules[op.rule], plan_.plan.ops[original], part,
                            program.types, program.mesh, plan_.cluster)
                        .seconds;
}

std::vector<double> Rewriting::seconds() {
  for (std::size_t trial = 0; trial < trials_.size(); ++trial) write(trial);
  put_copies_in();
  const ProgramMemory memory = memory_of(program_, plan_.cluster.compiler);
  std::vector<double> found(trials_.size());
  const auto more = [&](std::int32_t original, std::int32_t place) {
    const KernelPart &now = memory.parts[place], &then = plan_.parts[original];
    return seconds_of(original, now) - seconds_of(original, then);
  };
  for (std::size_t at = 0; at < copies_.size(); ++at) {
    found[copies_[at].trial] += more(copies_[at].original, place_of_copy_[at]);
  }
  for (std::size_t trial = 0; trial < trials_.size(); ++trial) {
    for (const std::int32_t op : trials_[trial].near) {
      if (!program_.ops[place_[op]].is_unread) found[trial] += more(op, place_[op]);
    }
  }
  return found;
}

/// What computing a value again changes; nothing where that is not told by its kernels.
std::optional<Trial> trial_of(const Block& block, const Program& program, const Index& index,
                              const Dropped& dropped, const CloneRules& rules) {
  Trial trial;
  trial.clones = clones_for(block, std::span(&dropped, 1), {}, rules);
  const auto is_of_another = [&](std::int32_t number) {
    return number != dropped.number && block.values[number].storage == Storage::stored;
  };
  for (const Batch& batch : trial.clones.batches) {
    const std::int32_t reader = block.ops[batch.position].in_program;
    if (reader < 0) return std::nullopt;
    trial.near.push_back(reader);
    for (const std::int32_t position : batch.ops) {
      const auto results = block.results[position];
      if (std::any_of(results.begin(), results.end(), is_of_another)) return std::nullopt;
      const std::int32_t op = block.ops[position].in_program;
      if (op >= 0) trial.originals.push_back(op);
    }
  }
  if (trial.originals.empty()) return std::nullopt;
  make_unique(trial.originals);
  for (const std::int32_t op : trial.originals) {
    trial.near.push_back(op);
    for (const auto* values : {&program.ops[op].operands, &program.ops[op].results}) {
      for (const std::int32_t v : *values) {
        if (v == no_value || program.values[v].is_free) continue;
        trial.near.insert(trial.near.end(), index.readers[v].begin(), index.readers[v].end());
      }
    }
  }
  make_unique(trial.near);
  return trial;
}

/// Values of a group that are tried in a round, where others are in the way.
constexpr std::size_t most_tried = 3;

/// Picks trials that have no op in common.
class Picking {
 public:
  Picking(const Block& block, const PlannedKernels& plan, const Index& index,
          const std::vector<std::vector<Dropped>>& groups, const CloneRules& rules);

  /// One trial of each group that fits with the others; those that were picked least often
  /// first, of these those with fewest ops.
  std::vector<Trial> round(std::size_t number);

 private:
  struct Candidate {
    std::size_t group = 0, num_ops = 0, picked = 0;
  };

  /// Another value in each round. Groups of as many values are of the same layers: each begins
  /// with another one.
  std::optional<Trial> trial_of(std::size_t group, std::size_t round, std::size_t tried) const;

  const Block& block_;
  const Program& program_;
  const Index& index_;
  const std::vector<std::vector<Dropped>>& groups_;
  const CloneRules rules_;
  std::vector<Candidate> candidates_;
};

Picking::Picking(const Block& block, const PlannedKernels& plan, const Index& index,
                 const std::vector<std::vector<Dropped>>& groups, const CloneRules& rules)
    : block_(block), program_(plan.program), index_(index), groups_(groups), rules_(rules) {
  for (std::size_t group = 0; group < groups.size(); ++group) {
    const auto trial = groups[group].empty() ? std::nullopt : trial_of(group, 0, 0);
    if (trial) candidates_.push_back({.group = group, .num_ops = trial->near.size()});
  }
}

std::optional<Trial> Picking::trial_of(std::size_t group, std::size_t round,
                                       std::size_t tried) const {
  const std::size_t size = groups_[group].size();
  const std::size_t first = group * size / groups_.size() + tried * size / most_tried;
  const Dropped& dropped = groups_[group][(first + round) % size];
  std::optional<Trial> trial =
      recomputation::trial_of(block_, program_, index_, dropped, rules_);
  if (trial) trial->group = group;
  return trial;
}

std::vector<Trial> Picking::round(std::size_t number) {
  std::stable_sort(candidates_.begin(), candidates_.end(), [](const auto& a, const auto& b) {
    return std::pair(a.picked, a.num_ops) < std::pair(b.picked, b.num_ops);
  });
  std::vector<Trial> found;
  std::vector<bool> is_taken(program_.ops.size());
  for (Candidate& one : candidates_) {
    const std::size_t most = std::min(most_tried, groups_[one.group].size());
    for (std::size_t tried = 0; tried < most; ++tried) {
      std::optional<Trial> trial = trial_of(one.group, number, tried);
      if (!trial || std::any_of(trial->near.begin(), trial->near.end(),
                                [&](std::int32_t op) { return is_taken[op]; })) {
        continue;
      }
      for (const std::int32_t op : trial->near) is_taken[op] = true;
      found.push_back(*std::move(trial));
      ++one.picked;
      break;
    }
  }
  return found;
}

}  // namespace

std::vector<double> seconds_besides(const Block& block, const PlannedKernels& plan,
                                    const std::vector<std::vector<Dropped>>& groups,
                                    const CloneRules& rules, int num_rounds) {
  const Index index(plan.program);
  Picking picking(block, plan, index, groups, rules);
  std::vector<double> found(groups.size()), alone(groups.size());
  std::vector<int> count(groups.size());
  for (int round = 0; round < num_rounds; ++round) {
    const std::vector<Trial> trials = picking.round(round);
    if (trials.empty()) break;
    const std::vector<double> seconds = Rewriting(block, plan, index, trials).seconds();
    for (std::size_t at = 0; at < trials.size(); ++at) {
      const std::size_t group = trials[at].group;
      ++count[group];
      found[group] += seconds[at];
      alone[group] += trials[at].clones.seconds;
    }
  }
  for (std::size_t group = 0; group < groups.size(); ++group) {
    if (count[group] == 0) continue;
    found[group] /= count[group];
    if (alone[group] <= 0) continue;
    const double all = clones_for(block, groups[group], {}, rules, false).seconds;
    const double each = all / static_cast<double>(groups[group].size());
    found[group] *= std::clamp(each * count[group] / alone[group], 0.0, 1.0);
  }
  return found;
}

}  // namespace autoshard::recomputation
