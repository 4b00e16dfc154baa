#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "planning/stream_schedule.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace autoshard {

using planning::LinkStreams;
using planning::StreamSchedule;
using planning::Task;
using planning::TaskTimes;

void bind_schedule(nb::module_& module) {
  nb::class_<Task>(module, "StreamTask",
                   "What takes the cores, links, or both; see "
                   "passes/planning/stream_schedule.h.")
      .def(
          "__init__",
          [](Task* self, double seconds, bool computes, LinkStreams links,
             std::vector<std::int32_t> after) {
            new (self) Task{seconds, computes, links, std::move(after)};
          },
          "seconds"_a, nb::kw_only(), "computes"_a = false, "links"_a = 0,
          "after"_a = std::vector<std::int32_t>{}, "`links`: one bit a stream.");

  nb::class_<TaskTimes>(module, "TaskTimes", "When a task runs, in seconds.")
      .def_ro("begin", &TaskTimes::begin)
      .def_ro("end", &TaskTimes::end)
      .def_ro("exposed", &TaskTimes::exposed)
      .def_ro("slack", &TaskTimes::slack);

  nb::class_<StreamSchedule>(module, "StreamSchedule", "Tasks of a step on their streams.")
      .def_ro("seconds", &StreamSchedule::seconds)
      .def_ro("tasks", &StreamSchedule::tasks);

  module.def("scheduled_from_end", &planning::scheduled_from_end, "tasks"_a, "slowdown"_a,
             "Each task as late as its readers let it. Raises ValueError.");
}

}  // namespace autoshard
