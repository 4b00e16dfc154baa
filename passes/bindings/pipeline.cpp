#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "bindings/bindings.h"
#include "importer/bytecode.h"
#include "pipeline/cuts.h"
#include "pipeline/list_schedule.h"
#include "pipeline/loop_shares.h"
#include "pipeline/stages.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace autoshard {

using pipeline::CannotCut;
using pipeline::Crossing;
using pipeline::Cuts;
using pipeline::ListOptions;
using pipeline::ListRun;
using pipeline::ListWork;
using pipeline::LoopShare;
using pipeline::OpKind;
using pipeline::Place;
using pipeline::Span;
using pipeline::Stages;
using pipeline::StageWork;
using pipeline::TimedStep;
using pipeline::Unit;
using pipeline::Why;

namespace {

/// What is asked of an op that stands for its class.
using AskKind = nb::typed<nb::callable, OpKind(std::int32_t)>;

void bind_records(nb::module_& module) {
  nb::enum_<Why>(module, "WhyNoStages", nb::is_str(), "Why a step has no such stages.")
      .str_value("ORDER", Why::order, "order", "A mark wants what others do not leave.")
      .str_value("FEW", Why::few, "few", "There are fewer units than stages.")
      .str_value("MARKS", Why::marks, "marks", "Marks leave a stage without a unit.")
      .str_value("LOOP", Why::loop, "loop", "One loop takes more than a stage may.");

  nb::class_<OpKind>(module, "StageOp",
                     "What all ops of one class have in common; see passes/pipeline/body.h.")
      .def(
          "__init__",
          [](OpKind* self, bool is_heavy, bool is_free, bool is_light, bool is_view,
             bool is_loop, bool is_add, std::int32_t mark, std::vector<double> result_bytes) {
            new (self) OpKind{is_heavy, is_free, is_light, is_view,
                              is_loop,  is_add,  mark,     std::move(result_bytes)};
          },
          nb::kw_only(), "is_heavy"_a, "is_free"_a, "is_light"_a, "is_view"_a, "is_loop"_a,
          "is_add"_a, "mark"_a, "result_bytes"_a);

  nb::class_<Place>(module, "StagePlace", "Where an op is made.")
      .def_ro("op", &Place::op)
      .def_ro("stage", &Place::stage)
      .def_ro("level", &Place::level);

  nb::class_<Crossing>(module, "StageCrossing",
                       "What crosses between two stages, both ways, in a micro-batch.")
      .def_ro("op", &Crossing::op, "The first unit behind the cut.")
      .def_ro("bytes", &Crossing::bytes)
      .def_ro("values", &Crossing::values);

  nb::class_<Stages>(module, "PipelineStages",
                     "The stages of a train step; see passes/pipeline/stages.h.")
      .def_ro("places", &Stages::places)
      .def_ro("cuts", &Stages::cuts)
      .def_ro("split_sums", &Stages::split_sums)
      .def_ro("seconds", &Stages::seconds)
      .def_ro("least_seconds", &Stages::least_seconds)
      .def_ro("units", &Stages::units);

  nb::class_<StageWork>(module, "StageWork",
                        "What a stage does of a micro-batch at one level; see "
                        "passes/pipeline/works.h.")
      .def_ro("stage", &StageWork::stage)
      .def_ro("level", &StageWork::level)
      .def_ro("seconds", &StageWork::seconds)
      .def_ro("deferred_seconds", &StageWork::deferred_seconds)
      .def_ro("after", &StageWork::after);

  nb::class_<Cuts>(module, "LineCuts", "A cut of a line; see passes/pipeline/cuts.h.")
      .def_ro("first_units", &Cuts::first_units)
      .def_ro("slowest_seconds", &Cuts::slowest_seconds)
      .def_ro("bytes", &Cuts::bytes);

  nb::class_<LoopShare>(module, "LoopShare",
                        "Parts of a loop over layers; see passes/pipeline/loop_shares.h.")
      .def_ro("first_stage", &LoopShare::first_stage)
      .def_ro("parts", &LoopShare::parts);
}

/// What `loop_shares` expects; raises ValueError for other input.
std::vector<Span> spans_of(const std::vector<double>& seconds,
                           const std::vector<std::vector<std::int32_t>>& parts,
                           std::int32_t stages, double slack) {
  if (stages < 1) {
    throw std::invalid_argument("stages=" + std::to_string(stages) + ": expected 1 or more");
  }
  if (!(slack >= 1)) {
    std::ostringstream said;
    said << "slack=" << slack << ": expected 1 or more";
    throw std::invalid_argument(said.str());
  }
  if (parts.size() != seconds.size()) {
    throw std::invalid_argument("parts: must be as long as seconds");
  }
  std::vector<Span> spans;
  for (std::size_t k = 0; k < seconds.size(); ++k) {
    for (const std::int32_t count : parts[k]) {
      if (count < 1) {
        throw std::invalid_argument("parts[" + std::to_string(k) + "]: is cut into " +
                                    std::to_string(count) + " parts");
      }
    }
    spans.push_back({seconds[k], parts[k]});
  }
  return spans;
}

std::vector<Unit> units_of(const std::vector<double>& seconds,
                           const std::vector<double>& bytes,
                           const std::vector<std::int32_t>& first,
                           const std::vector<std::int32_t>& last) {
  std::vector<Unit> units;
  for (std::size_t k = 0; k < seconds.size(); ++k) {
    units.push_back({seconds.at(k), bytes.at(k), {first.at(k), last.at(k)}});
  }
  return units;
}

/// A schedule that Python reads once.
struct ListedRuns {
  std::vector<ListRun> runs;

  double seconds() const {
    double last = 0;
    for (const ListRun& run : runs) last = std::max(last, run.end);
    return last;
  }
  std::vector<std::tuple<std::int32_t, std::int32_t, double, double>> all() const {
    std::vector<std::tuple<std::int32_t, std::int32_t, double, double>> found;
    found.reserve(runs.size());
    for (const auto& [work, micro_batch, start, end] : runs) {
      found.emplace_back(work, micro_batch, start, end);
    }
    return found;
  }
};

/// What `list_schedule` expects; raises ValueError for other input.
void check_list(const std::vector<ListWork>& works, const ListOptions& options) {
  if (options.micro_batches < 1 || options.together < 1) {
    throw std::invalid_argument("micro_batches, together: expected 1 or more");
  }
  for (std::size_t k = 0; k < works.size(); ++k) {
    const ListWork& work = works[k];
    const auto is_earlier = [&](std::int32_t it) {
      return it >= 0 && it < static_cast<std::int32_t>(k);
    };
    const auto has = [&](const std::vector<std::int32_t>& limit) {
      return limit.empty() || static_cast<std::size_t>(work.stage) < limit.size();
    };
    if (!std::all_of(work.after.begin(), work.after.end(), is_earlier) ||
        work.ways.size() != work.after.size()) {
      throw std::invalid_argument("work " + std::to_string(k) + ": is after a later one");
    }
    if (work.stage < 0 || work.name < 0 || !has(options.limits.ahead) ||
        !has(options.limits.kept)) {
      throw std::invalid_argument("work " + std::to_string(k) + ": has no such stage");
    }
  }
}

void bind_list_schedule(nb::module_& module) {
  nb::class_<ListWork>(
      module, "ListWork",
      "A piece of work of every micro-batch; see passes/pipeline/list_schedule.h.")
      .def(
          "__init__",
          [](ListWork* self, std::int32_t stage, std::int32_t name, std::int32_t rank,
             double seconds, std::vector<std::int32_t> after, std::vector<double> ways,
             std::int32_t ahead, std::int32_t kept, bool is_deferred) {
            new (self) ListWork{stage,           name,  rank, seconds,    std::move(after),
                                std::move(ways), ahead, kept, is_deferred};
          },
          nb::kw_only(), "stage"_a, "name"_a, "rank"_a, "seconds"_a, "after"_a, "ways"_a,
          "ahead"_a, "kept"_a, "is_deferred"_a);

  nb::class_<ListedRuns>(module, "ListedRuns", "When every work is done.")
      .def_prop_ro("seconds", &ListedRuns::seconds, "From the first start to the last end.")
      .def("all", &ListedRuns::all,
           "(work, micro_batch, start, end) by their start and stage.");

  module.def(
      "list_schedule",
      [](const std::vector<ListWork>& works, std::int32_t micro_batches, std::int32_t together,
         std::vector<std::int32_t> ahead, std::vector<std::int32_t> kept, bool are_raised,
         double patience) -> std::optional<ListedRuns> {
        const ListOptions options{micro_batches,
                                  together,
                                  {std::move(ahead), std::move(kept), are_raised},
                                  patience};
        check_list(works, options);
        auto runs = pipeline::list_schedule(works, options);
        if (!runs) return std::nullopt;
        return ListedRuns{*std::move(runs)};
      },
      "works"_a, nb::kw_only(), "micro_batches"_a, "together"_a, "ahead"_a, "kept"_a,
      "are_raised"_a, "patience"_a,
      "The schedule in which no stage waits while it could do something; limits that are "
      "empty "
      "are none. None: limits let no stage go on.");
}

}  // namespace

void bind_pipeline(nb::module_& module) {
  bind_list_schedule(module);
  bind_records(module);

  static nb::exception<CannotCut> refused(module, "NoPipelineStages");
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const CannotCut& r) {
      nb::object args = nb::make_tuple(r.why, r.op, r.stage, r.share, r.units);
      PyErr_SetObject(refused.ptr(), args.ptr());
    }
  });

  nb::class_<TimedStep>(module, "TimedStep",
                        "A step that is cut into several numbers of stages; see "
                        "passes/pipeline/stages.h.")
      .def(
          "__init__",
          [](TimedStep* self, const nb::bytes& bytecode, std::int32_t main, std::int32_t loop,
             std::vector<double> argument_bytes, std::vector<double> seconds,
             const AskKind& describe) {
            new (self)
                TimedStep(importer::read_bytecode({bytecode.c_str(), bytecode.size()}),
                          {main, loop, std::move(argument_bytes)}, std::move(seconds),
                          [&](std::int32_t op) { return nb::cast<OpKind>(describe(op)); });
          },
          "bytecode"_a, nb::kw_only(), "main"_a, "loop"_a, "argument_bytes"_a, "seconds"_a,
          "describe"_a)
      .def(
          "cut",
          [](TimedStep& step, std::int32_t stages, std::int32_t chunks, double slack) {
            return step.cut({stages, chunks, slack});
          },
          nb::kw_only(), "stages"_a, "chunks"_a, "slack"_a,
          "The stage and level of each op; raises NoPipelineStages(why, op, stage, share, "
          "units).")
      .def(
          "parts",
          [](TimedStep& step, std::int32_t stages, std::int32_t chunks, double slack) {
            return step.parts({stages, chunks, slack});
          },
          nb::kw_only(), "stages"_a, "chunks"_a, "slack"_a,
          "As `cut`, without places and sums that are split.")
      .def(
          "parts_on_line",
          [](TimedStep& step, std::int32_t stages, std::int32_t chunks, double slack) {
            return step.parts_on_line({stages, chunks, slack});
          },
          nb::kw_only(), "stages"_a, "chunks"_a, "slack"_a,
          "About as `parts`, and faster: everything stays at its unit.")
      .def(
          "works",
          [](const TimedStep& step, const Stages& stages) {
            return step.works(stages.places);
          },
          "stages"_a, "What its stages do for a micro-batch.");

  module.def(
      "stage_works",
      [](const nb::bytes& bytecode, std::int32_t main, std::int32_t loop,
         const std::vector<std::tuple<std::int32_t, std::int32_t, std::int32_t>>& places,
         const std::vector<double>& seconds) {
        const importer::ModuleStructure structure =
            importer::read_bytecode({bytecode.c_str(), bytecode.size()});
        std::vector<Place> given;
        for (const auto& [op, stage, level] : places) given.push_back({op, stage, level});
        return pipeline::works_of(pipeline::Ops(structure, nullptr), {main, loop, {}}, given,
                                  seconds);
      },
      "bytecode"_a, nb::kw_only(), "main"_a, "loop"_a, "places"_a, "seconds"_a,
      "What stages do for a micro-batch, by the (op, stage, level) of its ops, ascending.");

  module.def(
      "line_cuts",
      [](const std::vector<double>& seconds, const std::vector<double>& bytes,
         const std::vector<std::int32_t>& first, const std::vector<std::int32_t>& last,
         std::int32_t stages, double slack, std::int32_t chunks) -> std::optional<Cuts> {
        const std::vector<Unit> units = units_of(seconds, bytes, first, last);
        std::optional<std::vector<double>> limits =
            pipeline::least_turns(units, stages, chunks);
        if (!limits) return std::nullopt;
        for (double& limit : *limits) limit *= slack;
        return pipeline::cheapest_cuts(units, *limits);
      },
      "seconds"_a, "bytes"_a, "first"_a, "last"_a, nb::kw_only(), "stages"_a, "slack"_a,
      "chunks"_a = 1,
      "The cut of units with fewest bytes in which the slowest stage takes at most `slack` "
      "times the least; None: there is none.");

  module.def(
      "loop_shares",
      [](const std::vector<double>& seconds,
         const std::vector<std::vector<std::int32_t>>& parts, std::int32_t stages,
         double slack) {
        return pipeline::loop_shares(spans_of(seconds, parts, stages, slack), stages, slack);
      },
      "seconds"_a, "parts"_a, nb::kw_only(), "stages"_a, "slack"_a,
      "Into how many equal parts each loop among spans is cut, and where the first is; spans "
      "without parts are no loops. None: they do not fill the stages.");
}

}  // namespace autoshard
