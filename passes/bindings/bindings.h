/// One `bind_*` function per part of the core; `module.cpp` calls them all.
///
/// What crosses has a name: enums and records are bound as classes, and where thousands of
/// rows cross, the columns of a table are. Bindings only convert; whatever decides is in the
/// core.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "model/sharding.h"

namespace autoshard {

/// The axes of each dim, as Python gives a sharding.
using Dims = std::vector<std::vector<std::int32_t>>;

inline Sharding sharding_of(const Dims& dims) {
  Sharding sharding;
  for (const auto& axes : dims) sharding.dims.emplace_back(axes.begin(), axes.end());
  return sharding;
}

void bind_enums(nanobind::module_& module);
void bind_cluster(nanobind::module_& module);
void bind_importer(nanobind::module_& module);
void bind_micro_batch(nanobind::module_& module);
void bind_pipeline(nanobind::module_& module);
void bind_stage_tasks(nanobind::module_& module);
void bind_program(nanobind::module_& module);
void bind_cost(nanobind::module_& module);
void bind_schedule(nanobind::module_& module);
void bind_planning(nanobind::module_& module);
void bind_solver(nanobind::module_& module);
void bind_symbolic(nanobind::module_& module);
void bind_memory(nanobind::module_& module);
void bind_recomputation(nanobind::module_& module);
void bind_planned_blocks(nanobind::module_& module);

}  // namespace autoshard
