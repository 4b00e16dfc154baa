/// The stages of a train step that works through its batch in a loop over micro-batches.
///
/// Every op of `main` and of the loop's body gets a stage and a level (pipeline/levels.h).
///
///   in the loop  the line (pipeline/line.h) is cut where no stage takes much longer than it
///                must, and the fewest bytes cross (pipeline/cuts.h); what is no unit
///                lies on the side of each cut on which fewest bytes cross
///                (pipeline/min_cut.h)
///   behind it    where most bytes of what an op reads are, of what the loop leaves; scalars
///                of several stages meet on stage 0
///   before it    where it is read
///
/// Constants, parts of the batch and what is made of these alone are made on every stage that
/// reads them: such an op has several places.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "pipeline/body.h"
#include "pipeline/works.h"

namespace autoshard::pipeline {

/// What crosses between two parts, both ways, in a micro-batch.
struct Crossing {
  std::int32_t op;  ///< the first unit behind the cut
  double bytes = 0;
  std::int32_t values = 0;
};

struct Stages {
  /// By op, then by stage and level.
  std::vector<Place> places;
  std::vector<Crossing> cuts;
  /// Ops that add up what several stages have to add, in a micro-batch. They and the adds that
  /// lead to them have no places: each stage has to add its own.
  std::vector<std::int32_t> split_sums;
  /// Seconds of a micro-batch, by part of the line.
  std::vector<double> seconds;
  /// Seconds of the slowest stage in the best of all cuts.
  double least_seconds = 0;
  std::int32_t units = 0;
};

enum class Why : std::uint8_t {
  order,  ///< a mark wants what others do not leave
  few,    ///< there are fewer units than stages
  marks,  ///< marks leave a stage without a unit
  loop,   ///< one loop takes more than a stage may
};

struct CannotCut : std::runtime_error {
  CannotCut(Why why, std::int32_t op, std::int32_t stage, double share, std::int32_t units)
      : std::runtime_error("cannot be cut into stages"),
        why(why),
        op(op),
        stage(stage),
        share(share),
        units(units) {}
  Why why;
  std::int32_t op;     ///< the mark, or the loop; -1: none
  std::int32_t stage;  ///< the part to which other marks lead; -1: none do
  double share;        ///< of the step that the loop takes
  std::int32_t units;
};

struct Options {
  std::int32_t stages;
  /// Parts of the line on each stage: part n is on stage n % stages.
  std::int32_t chunks = 1;
  /// The slowest stage may take this times the least that it must, for fewer bytes.
  double slack = 1.05;
};

/// A step that is cut into several numbers of stages. Is not moved.
class TimedStep {
 public:
  /// `seconds`: of each op of the module, once a micro-batch; of an op of the body with what
  /// is in its regions. `describe` is asked now, and not kept.
  TimedStep(importer::ModuleStructure module, Loop loop, std::vector<double> seconds,
            const Describe& describe);
  TimedStep(const TimedStep&) = delete;
  TimedStep& operator=(const TimedStep&) = delete;

  /// Marks are numbers of parts; expects that they are below `stages * chunks`. Throws
  /// `CannotCut`.
  Stages cut(const Options& options);
  /// The same without places and sums, for its seconds and cuts.
  Stages parts(const Options& options);
  /// About the same, some ten times as fast: everything stays at its unit, so that cuts inside
  /// of a layer have what may be elsewhere.
  Stages parts_on_line(const Options& options);
  /// What stages do for a micro-batch, by their places.
  std::vector<StageWork> works(const std::vector<Place>& places) const;

 private:
  const importer::ModuleStructure module_;
  const Loop loop_;
  const std::vector<double> seconds_;
  Ops ops_;
  const Body body_;
};

}  // namespace autoshard::pipeline
