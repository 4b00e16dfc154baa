#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "importer/bytecode.h"
#include "pipeline/tasks.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace autoshard {

using importer::ModuleStructure;
using pipeline::CarriedValue;
using pipeline::StagedOps;
using pipeline::StageTasks;
using pipeline::Task;
using pipeline::TaskItem;
using pipeline::TaskOp;
using pipeline::TaskTime;

namespace {

/// What is asked of an op that stands for its class.
using AskTaskOp = nb::typed<nb::callable, TaskOp(std::int32_t)>;

/// A step whose tasks are asked for, and its ops by numbers.
struct TaskReader {
  ModuleStructure module;
  StagedOps ops;
  pipeline::TaskKinds kinds = {};
};

void bind_tasks(nb::module_& module) {
  nb::enum_<TaskTime>(module, "TaskTime", nb::is_str(), "The part of a step with a task.")
      .str_value("BEFORE", TaskTime::before, "before", "Before the loop.")
      .str_value("LOOP", TaskTime::loop, "loop", "Once for every micro-batch.")
      .str_value("AFTER", TaskTime::behind, "after", "Behind the loop.");

  nb::class_<TaskOp>(module, "TaskOp",
                     "What all ops of one class have in common; see passes/pipeline/tasks.h.")
      .def(
          "__init__",
          [](TaskOp* self, bool is_copied, bool is_heavy) {
            new (self) TaskOp{is_copied, is_heavy};
          },
          nb::kw_only(), "is_copied"_a, "is_heavy"_a);

  nb::class_<TaskItem>(module, "TaskItem", "An op of a task; see passes/pipeline/tasks.h.")
      .def_ro("op", &TaskItem::op)
      .def_ro("first_result", &TaskItem::first_result)
      .def_ro("reads", &TaskItem::reads);

  nb::class_<Task>(module, "StageOps", "Ops that run together; see passes/pipeline/tasks.h.")
      .def_ro("time", &Task::time)
      .def_prop_ro("level", [](const Task& task) { return task.key.level; })
      .def_prop_ro("stage", [](const Task& task) { return task.key.stage; })
      .def_prop_ro("is_deferred", [](const Task& task) { return task.key.is_deferred; })
      .def_ro("items", &Task::items)
      .def_ro("reads", &Task::reads);

  nb::class_<StageTasks>(module, "StageTasks",
                         "The tasks of a step; see passes/pipeline/tasks.h.")
      .def_ro("tasks", &StageTasks::tasks)
      .def_ro("made_by", &StageTasks::made_by)
      .def_ro("not_carried", &StageTasks::not_carried);
}

}  // namespace

void bind_stage_tasks(nb::module_& module) {
  bind_tasks(module);

  nb::class_<TaskReader>(module, "TaskReader",
                         "A step whose ops say their stages; see passes/pipeline/tasks.h.")
      .def(
          "__init__",
          [](TaskReader* self, const nb::bytes& bytecode) {
            new (self)
                TaskReader{importer::read_bytecode({bytecode.c_str(), bytecode.size()}), {}};
          },
          "bytecode"_a)
      .def(
          "result",
          [](const TaskReader& read, std::int32_t op, std::int32_t number) {
            return read.module.ops.at(op).first_result + number;
          },
          "op"_a, "number"_a, "A value, by its op.")
      .def(
          "argument",
          [](const TaskReader& read, std::int32_t op, std::int32_t region,
             std::int32_t number) {
            const std::int32_t at = read.module.ops.at(op).first_region + region;
            return read.module.regions.at(at).first_argument + number;
          },
          "op"_a, "region"_a, "number"_a, "A value, by the region whose argument it is.")
      .def_prop_ro(
          "makers",
          [](const TaskReader& read) {
            std::vector<std::int32_t> found(read.module.num_values, -1);
            for (std::size_t op = 0; op < read.module.ops.size(); ++op) {
              const importer::OpStructure& of = read.module.ops[op];
              std::fill_n(found.begin() + of.first_result, of.num_results,
                          static_cast<std::int32_t>(op));
            }
            return found;
          },
          "By value: the op whose result it is; -1: it is an argument of a region.")
      .def(
          "operands",
          [](const TaskReader& read, std::int32_t op) {
            const importer::OpStructure& of = read.module.ops.at(op);
            const auto first = read.module.operands.begin() + of.first_operand;
            return std::vector<std::int32_t>(first, first + of.num_operands);
          },
          "op"_a, "Values that an op reads itself.")
      .def(
          "say",
          [](TaskReader& read, std::int32_t main, std::int32_t loop,
             std::vector<std::int32_t> stages, std::vector<std::int32_t> own,
             std::vector<std::int32_t> held,
             const std::vector<std::tuple<std::int32_t, std::int32_t, std::int32_t>>&
                 carried) {
            read.ops = {main, loop, std::move(stages), std::move(own), std::move(held), {}};
            for (const auto& [argument, update, start] : carried) {
              read.ops.carried.push_back({argument, update, start});
            }
          },
          nb::kw_only(), "main"_a, "loop"_a, "stages"_a, "own"_a, "held"_a, "carried"_a,
          "What its ops say; `carried`: argument, update and start of each.")
      .def(
          "tasks",
          [](const TaskReader& read, bool defers, const AskTaskOp& describe) {
            return pipeline::tasks_of(read.module, read.ops, defers, [&](std::int32_t op) {
              return nb::cast<TaskOp>(describe(op));
            });
          },
          "defers"_a, "describe"_a, "The tasks; `describe` is asked of an op of each class.")
      .def(
          "kinds",
          [](TaskReader& read, const StageTasks& found) {
            return pipeline::kinds_of(read.module, found.tasks, read.kinds);
          },
          "found"_a,
          "A number for each task, equal for those that do the same, of all that were asked "
          "for.")
      .def(
          "positions",
          [](const TaskReader& read, const Task& task,
             const std::vector<std::int32_t>& values) {
            return pipeline::positions_of(read.module, task, values);
          },
          "task"_a, "values"_a, "Which of the results of a task's ops these values are.");
}

}  // namespace autoshard
