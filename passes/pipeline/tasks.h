/// Which ops of a step with stages are one task: those that agree in time, stage and level.
///
///   before   what is read later
///   loop     once for every micro-batch
///   behind   once a step
///
/// What is cheaper to make again than to send (constants, iotas, broadcasts of less) is made
/// by each task that reads it: a copy, whose result is a value of its own, behind those of the
/// module.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "importer/bytecode.h"

namespace autoshard::pipeline {

/// What all ops of one class have in common.
struct TaskOp {
  /// It is cheaper to make again than to send.
  bool is_copied = false;
  /// A task of its own is worth its launch.
  bool is_heavy = false;
};

using DescribeTaskOp = std::function<TaskOp(std::int32_t op)>;

/// In the order in which tasks of one part of the program run.
struct TaskKey {
  std::int32_t level = 0, stage = 0;
  /// No other task of the loop waits for it.
  bool is_deferred = false;

  auto operator<=>(const TaskKey&) const = default;
};

/// An op of a task.
struct TaskItem {
  /// Number in the module; a copy has that of the op that it is one of.
  std::int32_t op;
  /// Other results follow it.
  std::int32_t first_result;
  /// Values made outside of the op that it reads, and those that stand in it, op after op.
  std::vector<std::int32_t> reads;
};

enum class TaskTime : std::uint8_t { before, loop, behind };

struct Task {
  TaskTime time;
  TaskKey key;
  /// In the order in which they run.
  std::vector<TaskItem> items;
  /// Values that it reads and does not make, in the order of their first use.
  std::vector<std::int32_t> reads;
};

/// A value that a micro-batch hands on to the next one.
struct CarriedValue {
  /// The argument of the body, what it yields, and the constant that it is at first: an op.
  std::int32_t argument, update, start;
};

/// A step as its ops say.
struct StagedOps {
  std::int32_t main, loop;
  /// By op of the module, at the top of `main` and of the body of the loop; -1: it says none,
  /// and stands with what it reads last, else with what reads it first.
  std::vector<std::int32_t> stages;
  /// Ops that belong to the loop itself: starts of what it carries, what counts its trips.
  std::vector<std::int32_t> own;
  /// Ops before the loop that stand on the first stage that reads them in the loop.
  std::vector<std::int32_t> held;
  std::vector<CarriedValue> carried;
};

struct StageTasks {
  /// Before, in and behind the loop, in the order in which they run.
  std::vector<Task> tasks;
  /// By value of the module: the task that makes it; -1: none does.
  std::vector<std::int32_t> made_by;
  /// The first carried value that is not read and made anew by one task; then only tasks in
  /// the loop and behind it are there.
  std::optional<std::int32_t> not_carried;
};

/// `defers`: what nothing in the loop waits for, as gradients of weights, is tasks of its own.
StageTasks tasks_of(const importer::ModuleStructure& module, const StagedOps& of, bool defers,
                    const DescribeTaskOp& describe);

/// What tasks do, by a number: `known` has those of tasks that were asked for before.
using TaskKinds = std::map<std::vector<std::int32_t>, std::int32_t>;

/// A number for each task, equal for those that do the same: equal ops, which read each
/// other's results alike, and values from outside in the same order.
std::vector<std::int32_t> kinds_of(const importer::ModuleStructure& module,
                                   const std::vector<Task>& tasks, TaskKinds& known);

/// Which of the results of a task's ops these values are, in the order of the ops.
std::vector<std::int32_t> positions_of(const importer::ModuleStructure& module,
                                       const Task& task,
                                       const std::vector<std::int32_t>& values);

}  // namespace autoshard::pipeline
