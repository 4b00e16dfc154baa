/// What a search plans, and within which limits.
#pragma once

#include "memory/program_memory.h"
#include "model/cluster.h"
#include "model/program.h"
#include "planning/classes.h"
#include "planning/phases.h"
#include "planning/search_options.h"
#include "planning/watch.h"

namespace autoshard::planning {

/// What all parts of a search have in common. Whoever makes one keeps what it refers to alive.
struct SearchTask {
  const Program& program;
  const Classes& classes;
  const ProgramMemory& memory;
  const Cluster& cluster;
  const RecursiveOptions& options;
  Phases& phases;
  Watch& watch;
};

}  // namespace autoshard::planning
