/// What a search plans, and within which limits.
#pragma once

#include "memory/program_memory.h"
#include "model/cluster.h"
#include "model/program.h"
#include "planning/classes.h"
#include "planning/phases.h"
#include "planning/search_options.h"

namespace autoshard::planning {

/// What all parts of a search have in common. Whoever makes one keeps what it refers to alive.
struct SearchTask {
  const Program& program;
  const Classes& classes;
  const ProgramMemory& memory;
  const Cluster& cluster;
  const RecursiveOptions& options;
  /// Nothing more is tried after it.
  Clock::time_point deadline;
  Phases& phases;
};

}  // namespace autoshard::planning
