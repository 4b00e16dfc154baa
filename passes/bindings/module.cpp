#include <nanobind/nanobind.h>

#include "bindings/bindings.h"

NB_MODULE(_core, module) {
#ifdef NDEBUG
  // Python does not free what is held when it ends: nothing that users could mend.
  nanobind::set_leak_warnings(false);
#endif
  module.doc() = "The C++ core of autoshard: plain structs in, decisions out.";
  autoshard::bind_enums(module);
  autoshard::bind_cluster(module);
  autoshard::bind_program(module);
  autoshard::bind_importer(module);
  autoshard::bind_micro_batch(module);
  autoshard::bind_pipeline(module);
  autoshard::bind_stage_tasks(module);
  autoshard::bind_cost(module);
  autoshard::bind_symbolic(module);
  autoshard::bind_schedule(module);
  autoshard::bind_planning(module);
  autoshard::bind_solver(module);
  autoshard::bind_memory(module);
  autoshard::bind_recomputation(module);
  autoshard::bind_planned_blocks(module);
}
