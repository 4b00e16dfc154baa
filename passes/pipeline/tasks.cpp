#include "pipeline/tasks.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>

namespace autoshard::pipeline {

using importer::Block;
using importer::ModuleStructure;
using importer::OpStructure;

namespace {

using Numbers = std::vector<std::int32_t>;
using Tasks = std::map<TaskKey, std::vector<TaskItem>>;

/// Copies of ops that a task makes for itself.
class Copies {
 public:
  /// `makers`: by value that is copied, what makes it.
  Copies(const std::unordered_map<std::int32_t, TaskItem>& makers, std::int32_t& num_values)
      : makers_(makers), num_values_(num_values) {}

  /// Adds an op to a task, behind copies of what it reads.
  void add(TaskItem item, std::vector<TaskItem>& items) {
    for (std::int32_t& value : item.reads) value = read(value, items);
    items.push_back(std::move(item));
  }

 private:
  std::int32_t read(std::int32_t value, std::vector<TaskItem>& items) {
    const auto maker = makers_.find(value);
    if (maker == makers_.end()) return value;
    const auto known = made_.find(value);
    if (known != made_.end()) return known->second;
    TaskItem copy = maker->second;
    copy.first_result = num_values_++;
    made_[value] = copy.first_result;
    const std::int32_t result = copy.first_result;
    add(std::move(copy), items);
    return result;
  }

  const std::unordered_map<std::int32_t, TaskItem>& makers_;
  std::int32_t& num_values_;
  std::unordered_map<std::int32_t, std::int32_t> made_;
};

class Finder {
 public:
  Finder(const ModuleStructure& module, const StagedOps& of, const DescribeTaskOp& describe)
      : module_(module),
        of_(of),
        describe_(describe),
        stages_(of.stages),
        kinds_(module.num_classes),
        owner_(module.num_values, -1),
        is_own_(module.ops.size(), false),
        num_values_(module.num_values) {
    for (std::size_t op = 0; op < module.ops.size(); ++op) {
      const OpStructure& read = module.ops[op];
      for (std::int32_t k = 0; k < read.num_results; ++k) {
        owner_[read.first_result + k] = static_cast<std::int32_t>(op);
      }
      for (std::int32_t r = 0; r < read.num_regions; ++r) {
        const Block& block = module.regions[read.first_region + r];
        for (std::int32_t k = 0; k < block.num_arguments; ++k) {
          owner_[block.first_argument + k] = static_cast<std::int32_t>(op);
        }
      }
    }
    for (const std::int32_t op : of.own) is_own_[op] = true;
    for (const CarriedValue& one : of.carried) is_own_[one.start] = true;
  }

  StageTasks find(bool defers) {
    const Block& main = module_.regions[module_.ops[of_.main].first_region];
    const Block& body = module_.regions[module_.ops[of_.loop].first_region + 1];
    const Numbers before = ops_between(main.first_op, of_.loop);
    const Numbers inside = ops_between(body.first_op, body.last_op);
    const Numbers behind = ops_between(module_.ops[of_.loop].end, main.last_op);
    std::vector<char> ends(module_.num_values, false), updates(module_.num_values, false);
    for (const std::int32_t value : operands(main.last_op)) ends[value] = true;
    for (const CarriedValue& one : of_.carried) updates[one.update] = true;
    Tasks loop = tasks_of(inside, keys_of(inside), updates);
    move_late_slices(loop);
    if (defers) loop = deferred(loop);
    const Tasks after = tasks_of(behind, as_late_as_read(behind, ends), ends);
    StageTasks found;
    add(loop, TaskTime::loop, found.tasks);
    const std::size_t in_loop = found.tasks.size();
    add(after, TaskTime::behind, found.tasks);
    label_held({found.tasks.begin(), found.tasks.begin() + in_loop});
    std::vector<char> read = ends;
    for (const Task& task : found.tasks) {
      for (const std::int32_t value : task.reads) {
        if (value < module_.num_values) read[value] = true;
      }
    }
    Tasks ahead = tasks_of(before, keys_of(before), read);
    const std::span<const Task> in_trips(found.tasks.data(), in_loop);
    const Numbers makers = made_by(in_trips);
    for (std::size_t k = 0; k < of_.carried.size(); ++k) {
      const CarriedValue& one = of_.carried[k];
      const std::int32_t maker = makers[one.update];
      if (maker < 0 || is_read_by_others(one.argument, in_trips, maker)) {
        found.not_carried = static_cast<std::int32_t>(k);
        return found;
      }
      ahead[{0, in_trips[maker].key.stage}].push_back(item_of(one.start));
    }
    std::vector<Task> all;
    add(ahead, TaskTime::before, all);
    for (Task& task : found.tasks) all.push_back(std::move(task));
    found.tasks = std::move(all);
    found.made_by = made_by(found.tasks);
    return found;
  }

 private:
  Numbers ops_between(std::int32_t first, std::int32_t last) const {
    Numbers found;
    for (std::int32_t op = first; op < last; op = module_.ops[op].end) {
      if (!is_own_[op]) found.push_back(op);
    }
    return found;
  }

  Numbers operands(std::int32_t op) const {
    const auto first = module_.operands.begin() + module_.ops[op].first_operand;
    return {first, first + module_.ops[op].num_operands};
  }

  TaskItem item_of(std::int32_t op) const {
    TaskItem found{op, module_.ops[op].first_result, {}};
    for (std::int32_t inner = op; inner < module_.ops[op].end; ++inner) {
      const OpStructure& read = module_.ops[inner];
      for (std::int32_t k = 0; k < read.num_operands; ++k) {
        const std::int32_t value = module_.operands[read.first_operand + k];
        if (owner_[value] < op) found.reads.push_back(value);
      }
    }
    return found;
  }

  template <typename Visit>
  void for_results(const TaskItem& item, const Visit& visit) const {
    for (std::int32_t k = 0; k < module_.ops[item.op].num_results; ++k) {
      visit(item.first_result + k);
    }
  }

  const TaskOp& kind(std::int32_t op) {
    std::optional<TaskOp>& known = kinds_[module_.ops[op].op_class];
    if (!known) known = describe_(op);
    return *known;
  }

  /// Keys of ops; levels follow from the stages: changes of stage on the longest way to an op,
  /// where what is copied is on the stage of its reader.
  std::vector<TaskKey> keys_of(const Numbers& ops) {
    std::unordered_map<std::int32_t, std::vector<TaskKey>> makers;
    std::vector<TaskKey> keys;
    for (std::size_t n = 0; n < ops.size(); ++n) {
      const TaskItem item = item_of(ops[n]);
      std::vector<TaskKey> read;
      for (const std::int32_t value : item.reads) {
        const auto known = makers.find(value);
        if (known == makers.end()) continue;
        for (const TaskKey& key : known->second) {
          if (std::find(read.begin(), read.end(), key) == read.end()) read.push_back(key);
        }
      }
      std::int32_t stage = stages_[ops[n]];
      const bool is_copied = kind(ops[n]).is_copied;
      if (!is_copied && stage < 0) {
        stage = read.empty() ? first_reader(ops, n) : std::ranges::max(read).stage;
      }
      stage = std::max(stage, 0);
      TaskKey key{0, stage};
      for (const TaskKey& other : read) {
        key.level = std::max(key.level, other.level + (other.stage != stage));
      }
      for_results(item, [&](std::int32_t value) {
        if (!is_copied) {
          makers[value] = {key};
        } else if (!read.empty()) {
          makers[value] = read;
        }
      });
      keys.push_back(key);
    }
    return keys;
  }

  /// Who reads a value behind the loop.
  struct Readers {
    /// All of them are there; -1: there are several.
    std::int32_t stage;
    std::int32_t first_level, last_level;
  };

  /// Keys of ops behind the loop, of which those wait that nobody reads before, if all that
  /// they read is there until then anyway.
  ///
  /// Example: gradients are clipped by the norm of all. Of the squares of a stage, their sum
  /// on one, the update, old moments are scaled in the update, to whose gradients they are
  /// added, not beside the squares.
  std::vector<TaskKey> as_late_as_read(const Numbers& ops, const std::vector<char>& ends) {
    std::vector<TaskKey> keys = keys_of(ops);
    std::unordered_map<std::int32_t, Readers> readers;
    const auto note = [&](const TaskItem& item, const Readers& by) {
      for (const std::int32_t value : item.reads) {
        const auto [known, is_new] = readers.try_emplace(value, by);
        if (is_new) continue;
        Readers& all = known->second;
        if (all.stage != by.stage) all.stage = -1;
        all.first_level = std::min(all.first_level, by.first_level);
        all.last_level = std::max(all.last_level, by.last_level);
      }
    };
    for (std::size_t n = ops.size(); n-- > 0;) {
      const TaskItem item = item_of(ops[n]);
      std::optional<Readers> read;
      bool may_wait = true;
      for_results(item, [&](std::int32_t value) {
        const auto known = readers.find(value);
        may_wait &= !ends[value] && known != readers.end();
        if (known == readers.end()) return;
        const Readers& by = known->second;
        if (!read) read = by;
        if (by.stage != read->stage) read->stage = -1;
        read->first_level = std::min(read->first_level, by.first_level);
        read->last_level = std::max(read->last_level, by.last_level);
      });
      TaskKey& key = keys[n];
      if (kind(ops[n]).is_copied) {
        if (read) note(item, *read);
        continue;
      }
      may_wait &= read && read->stage == key.stage && read->first_level > key.level;
      if (may_wait) {
        const bool is_kept = std::ranges::all_of(item.reads, [&](std::int32_t value) {
          return stays(value, key.stage, read->first_level, readers);
        });
        if (is_kept) key.level = read->first_level;
      }
      note(item, {key.stage, key.level, key.level});
    }
    return keys;
  }

  /// Whether a stage has a value at a level, whoever else reads it.
  bool stays(std::int32_t value, std::int32_t stage, std::int32_t level,
             const std::unordered_map<std::int32_t, Readers>& readers) {
    const std::int32_t maker = owner_[value];
    if (maker == of_.main || (maker >= 0 && kind(maker).is_copied)) return true;
    const auto known = readers.find(value);
    return known != readers.end() && known->second.stage == stage &&
           known->second.last_level >= level;
  }

  /// The stage of the first op behind one that says its stage and reads it; -1: none does.
  std::int32_t first_reader(const Numbers& ops, std::size_t number) const {
    const OpStructure& made = module_.ops[ops[number]];
    for (std::size_t n = number + 1; n < ops.size(); ++n) {
      if (stages_[ops[n]] < 0) continue;
      for (const std::int32_t value : item_of(ops[n]).reads) {
        if (value >= made.first_result && value < made.first_result + made.num_results) {
          return stages_[ops[n]];
        }
      }
    }
    return -1;
  }

  /// What is copied stays behind, unless it is `kept`: read outside of these ops.
  Tasks tasks_of(const Numbers& ops, const std::vector<TaskKey>& keys,
                 const std::vector<char>& kept) {
    std::unordered_map<std::int32_t, TaskItem> copied;
    for (const std::int32_t op : ops) {
      if (kind(op).is_copied) copied.emplace(module_.ops[op].first_result, item_of(op));
    }
    Tasks tasks;
    std::map<TaskKey, Copies> copies;
    for (std::size_t n = 0; n < ops.size(); ++n) {
      TaskItem item = item_of(ops[n]);
      if (kind(ops[n]).is_copied && !kept[item.first_result]) continue;
      Copies& own = copies.try_emplace(keys[n], copied, num_values_).first->second;
      own.add(std::move(item), tasks[keys[n]]);
    }
    return tasks;
  }

  /// Tasks that wait for nothing and for which one stage waits, as taking the part of the
  /// labels that belongs to a micro-batch, are light, and done by the first task that reads
  /// them.
  void move_late_slices(Tasks& tasks) {
    std::unordered_map<std::int32_t, TaskKey> made;
    for (const auto& [key, items] : tasks) {
      for (const TaskItem& item : items) {
        for_results(item, [&](std::int32_t value) { made[value] = key; });
      }
    }
    std::map<TaskKey, std::set<TaskKey>> readers;
    std::set<TaskKey> waiting;
    for (const auto& [key, items] : tasks) {
      for (const TaskItem& item : items) {
        for (const std::int32_t value : item.reads) {
          const auto maker = made.find(value);
          if (maker == made.end() || maker->second == key) continue;
          readers[maker->second].insert(key);
          waiting.insert(key);
        }
      }
    }
    for (const auto& [key, read_by] : readers) {
      const bool is_of_one_stage =
          std::ranges::all_of(read_by, [&](const TaskKey& r) { return r.stage == key.stage; });
      if (waiting.contains(key) || !is_of_one_stage || is_heavy(tasks.at(key))) continue;
      std::vector<TaskItem> items = std::move(tasks.at(key));
      tasks.erase(key);
      std::vector<TaskItem>& first = tasks.at(*read_by.begin());
      first.insert(first.begin(), std::move_iterator(items.begin()),
                   std::move_iterator(items.end()));
    }
  }

  bool is_heavy(const std::vector<TaskItem>& items) {
    return std::ranges::any_of(items, [&](const TaskItem& i) { return kind(i.op).is_heavy; });
  }

  /// With what no other task waits for as tasks of their own. A task without a matmul among
  /// such ops stays whole, as does one for which nothing waits at all.
  Tasks deferred(const Tasks& tasks) {
    std::unordered_map<std::int32_t, std::set<TaskKey>> read_by;
    for (const auto& [key, items] : tasks) {
      for (const TaskItem& item : items) {
        for (const std::int32_t value : item.reads) read_by[value].insert(key);
      }
    }
    Tasks found;
    for (const auto& [key, items] : tasks) {
      const std::vector<char> is_waited = waited_for(key, items, read_by);
      std::vector<TaskItem> first, rest;
      for (std::size_t n = 0; n < items.size(); ++n) {
        (is_waited[n] ? first : rest).push_back(items[n]);
      }
      if (first.empty() || !is_heavy(rest)) {
        found[key] = items;
        continue;
      }
      std::unordered_map<std::int32_t, TaskItem> copied;
      for (const TaskItem& item : first) {
        if (kind(item.op).is_copied) copied.emplace(item.first_result, item);
      }
      Copies copies(copied, num_values_);
      std::vector<TaskItem>& later = found[{key.level, key.stage, true}];
      for (TaskItem& item : rest) copies.add(std::move(item), later);
      found[key] = std::move(first);
    }
    return found;
  }

  std::vector<char> waited_for(
      const TaskKey& key, const std::vector<TaskItem>& items,
      const std::unordered_map<std::int32_t, std::set<TaskKey>>& read_by) const {
    std::unordered_map<std::int32_t, std::size_t> makers;
    std::vector<std::size_t> waiting;
    for (std::size_t n = 0; n < items.size(); ++n) {
      for_results(items[n], [&](std::int32_t value) {
        makers[value] = n;
        const auto readers = read_by.find(value);
        if (readers == read_by.end()) return;
        if (readers->second.size() > readers->second.count(key)) waiting.push_back(n);
      });
    }
    std::vector<char> found(items.size(), false);
    while (!waiting.empty()) {
      const std::size_t n = waiting.back();
      waiting.pop_back();
      if (found[n]) continue;
      found[n] = true;
      for (const std::int32_t value : items[n].reads) {
        const auto maker = makers.find(value);
        if (maker != makers.end()) waiting.push_back(maker->second);
      }
    }
    return found;
  }

  void add(const Tasks& tasks, TaskTime time, std::vector<Task>& found) const {
    for (const auto& [key, items] : tasks) {
      Task task{time, key, items, {}};
      std::set<std::int32_t> known;
      for (const TaskItem& item : items) {
        for_results(item, [&](std::int32_t value) { known.insert(value); });
      }
      for (const TaskItem& item : items) {
        for (const std::int32_t value : item.reads) {
          if (known.insert(value).second) task.reads.push_back(value);
        }
      }
      found.push_back(std::move(task));
    }
  }

  void label_held(const std::vector<Task>& loop) {
    std::unordered_map<std::int32_t, std::int32_t> first;
    for (const Task& task : loop) {
      for (const std::int32_t value : task.reads) {
        const auto [at, is_new] = first.try_emplace(value, task.key.stage);
        if (!is_new) at->second = std::min(at->second, task.key.stage);
      }
    }
    for (const std::int32_t op : of_.held) {
      const auto known = first.find(module_.ops[op].first_result);
      stages_[op] = known == first.end() ? 0 : known->second;
    }
  }

  /// By value of the module; -1: none does.
  Numbers made_by(std::span<const Task> tasks) const {
    Numbers found(module_.num_values, -1);
    for (std::size_t number = 0; number < tasks.size(); ++number) {
      for (const TaskItem& item : tasks[number].items) {
        for_results(item, [&](std::int32_t value) {
          if (value < module_.num_values) found[value] = static_cast<std::int32_t>(number);
        });
      }
    }
    return found;
  }

  static bool is_read_by_others(std::int32_t value, std::span<const Task> tasks,
                                std::int32_t maker) {
    for (std::size_t n = 0; n < tasks.size(); ++n) {
      const Numbers& reads = tasks[n].reads;
      if (static_cast<std::int32_t>(n) == maker) continue;
      if (std::find(reads.begin(), reads.end(), value) != reads.end()) return true;
    }
    return false;
  }

  const ModuleStructure& module_;
  const StagedOps& of_;
  const DescribeTaskOp& describe_;
  Numbers stages_;
  std::vector<std::optional<TaskOp>> kinds_;  // by class
  std::vector<std::int32_t> owner_;           // by value: the op that has it
  std::vector<char> is_own_;                  // by op
  /// Those of the module, and results of copies.
  std::int32_t num_values_;
};

}  // namespace

StageTasks tasks_of(const ModuleStructure& module, const StagedOps& of, bool defers,
                    const DescribeTaskOp& describe) {
  return Finder(module, of, describe).find(defers);
}

namespace {

/// What stands in an op: classes, and what is read of each other, by the order of values.
void add_inner(const ModuleStructure& module, std::int32_t outer, Numbers& said) {
  std::unordered_map<std::int32_t, std::int32_t> local;
  const auto define = [&](std::int32_t first, std::int32_t count) {
    for (std::int32_t k = 0; k < count; ++k) {
      local.emplace(first + k, static_cast<std::int32_t>(local.size()));
    }
  };
  for (std::int32_t inner = outer; inner < module.ops[outer].end; ++inner) {
    const OpStructure& op = module.ops[inner];
    if (inner > outer) {
      said.insert(said.end(), {op.op_class, op.num_operands, op.end - inner});
      for (std::int32_t k = 0; k < op.num_operands; ++k) {
        const auto known = local.find(module.operands[op.first_operand + k]);
        said.push_back(known == local.end() ? -1 : known->second);  // -1: from outside
      }
      define(op.first_result, op.num_results);
    }
    for (std::int32_t r = 0; r < op.num_regions; ++r) {
      const Block& block = module.regions[op.first_region + r];
      define(block.first_argument, block.num_arguments);
    }
  }
}

}  // namespace

std::vector<std::int32_t> kinds_of(const ModuleStructure& module,
                                   const std::vector<Task>& tasks, TaskKinds& known) {
  Numbers found;
  for (const Task& task : tasks) {
    std::unordered_map<std::int32_t, std::int32_t> local;
    const auto number = [&](std::int32_t value) {
      return local.try_emplace(value, static_cast<std::int32_t>(local.size())).first->second;
    };
    for (const std::int32_t value : task.reads) number(value);
    Numbers said;
    for (const TaskItem& item : task.items) {
      const OpStructure& outer = module.ops[item.op];
      for (const std::int32_t value : item.reads) said.push_back(number(value));
      said.insert(said.end(), {outer.op_class, outer.num_operands, outer.end - item.op});
      if (outer.end > item.op + 1) add_inner(module, item.op, said);
      for (std::int32_t k = 0; k < outer.num_results; ++k) number(item.first_result + k);
    }
    const auto next = static_cast<std::int32_t>(known.size());
    found.push_back(known.try_emplace(std::move(said), next).first->second);
  }
  return found;
}

std::vector<std::int32_t> positions_of(const ModuleStructure& module, const Task& task,
                                       const std::vector<std::int32_t>& values) {
  std::unordered_map<std::int32_t, std::int32_t> places;
  for (const TaskItem& item : task.items) {
    for (std::int32_t k = 0; k < module.ops[item.op].num_results; ++k) {
      places.emplace(item.first_result + k, static_cast<std::int32_t>(places.size()));
    }
  }
  Numbers found;
  for (const std::int32_t value : values) found.push_back(places.at(value));
  return found;
}

}  // namespace autoshard::pipeline
